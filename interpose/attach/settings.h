/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SLUICE_SETTINGS_H
#define SLUICE_SETTINGS_H

/* The directory in which to look for this process's grant; it need not exist. NULL: this process has none. */
const char *settings_grant_dir(void);

#endif
