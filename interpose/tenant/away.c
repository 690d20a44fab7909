/* SPDX-License-Identifier: Apache-2.0 */
/* Waits while the grant's memory is checkpointed on the host: see away.h. */
#include "interpose/tenant/moves.h"

#include <linux/futex.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "interpose/attach/attach.h"
#include "interpose/driver/driver.h"
#include "interpose/tenant/guest.h"

/* All devices of a grant are checkpointed and restored together. */
static bool is_spilled(const struct sluice_policy *policy)
{
	uint32_t flags = __atomic_load_n(&policy->dev[0].flags, __ATOMIC_ACQUIRE);

	return (flags & SLUICE_FLAG_SPILLED) && !(flags & SLUICE_FLAG_REVOKED);
}

bool away_now(void)
{
	const struct sluice_guest *guest = guest_self();

	return guest && is_spilled(guest->policy);
}

void away_wait(void)
{
	const struct sluice_guest *guest = guest_self();

	while (guest && is_spilled(guest->policy)) {
		uint32_t wake =
			__atomic_load_n(&guest->policy->control.wake, __ATOMIC_ACQUIRE); /* R5: before the check */
		struct timespec timeout = { .tv_nsec = 10000000 };

		if (is_spilled(guest->policy))
			syscall(SYS_futex, &guest->policy->control.wake, FUTEX_WAIT, wake, &timeout, NULL, 0);
	}
}

/* The grant's room on the card may be another grant's by now: `sluice resume` restores it where there is room. A process
 * that only makes checkpoints is no tenant, so the region itself is read. */
CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
	struct attach_region region;

	driver_load();
	if (!driver.cuCheckpointProcessRestore)
		return CUDA_ERROR_NOT_FOUND;
	if (attach_map(&region) == 0 && is_spilled(region.policy))
		return CUDA_ERROR_NOT_PERMITTED;
	return driver.cuCheckpointProcessRestore(pid, args);
}
