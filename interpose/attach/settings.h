/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SLUICE_SETTINGS_H
#define SLUICE_SETTINGS_H

/* The directory of this process's grant: where to look, not whether it is there. NULL: this process has none. */
const char *settings_grant_dir(void);

#endif
