/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes charged to this process, per device: the only writer of its `charged_bytes`. See tally.c. */
#ifndef SLUICE_TALLY_H
#define SLUICE_TALLY_H

#include <stdbool.h>
#include <stdint.h>

/* Reserve-then-verify (R4): false when the grant's sum would pass `limit_bytes`. */
bool tally_take(int device, uint64_t bytes, uint64_t limit_bytes);
/* Charge what is there already, limit or not. */
void tally_force(int device, uint64_t bytes);
/* Not charged, and nothing returned lowers the charge before as much has been returned. */
void tally_beyond(int device, uint64_t bytes);
void tally_return(int device, uint64_t bytes);
/* What this process is charged now. */
uint64_t tally_charged(int device);
/* From now on everything is charged in this slot, which is ours and in which nobody charges yet. */
void tally_move(uint32_t slot);

#endif
