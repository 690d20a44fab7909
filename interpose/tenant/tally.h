/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes charged to this process, per device: the only writer of its `charged_bytes`. See tally.c. */
#ifndef SLUICE_TALLY_H
#define SLUICE_TALLY_H

#include <stdbool.h>
#include <stdint.h>

/* Reserve-then-verify (R4): false when the grant's sum would pass `limit_bytes`. */
bool tally_take(int device, uint64_t bytes, uint64_t limit_bytes);
/* Charge memory that exists already, beyond the limit if need be. */
void tally_force(int device, uint64_t bytes);
/* These bytes are not charged, and returned bytes lower the charge only after as many have been returned. */
void tally_beyond(int device, uint64_t bytes);
void tally_return(int device, uint64_t bytes);
/* The bytes that this process is charged now. */
uint64_t tally_charged(int device);
/* From now on all bytes are charged in this slot, which is ours and in which no thread charges yet. */
void tally_move(uint32_t slot);

#endif
