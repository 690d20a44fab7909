/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA_VISIBLE_DEVICES by index counts the GPUs of the grant. See visible.c. */
#ifndef SLUICE_VISIBLE_H
#define SLUICE_VISIBLE_H

#include <stdint.h>

#define VISIBLE_UUID_TEXT 37

/* The 36 characters of a UUID, without the prefix that names a GPU or a MIG device. */
void visible_uuid_text(const uint8_t uuid[16], char ret_text[VISIBLE_UUID_TEXT]);
/* Before the driver's cuInit, in the only thread that attaches: indices become the UUIDs of the grant's GPUs. */
void visible_prepare(void);

#endif
