/* SPDX-License-Identifier: Apache-2.0 */
/* Waits while the grant's memory is checkpointed on the host: see away.h. */
#include "interpose/tenant/moves.h"

#include <linux/futex.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "interpose/tenant/guest.h"

/* All devices of a grant are checkpointed and restored together. */
static bool is_away(const struct sluice_guest *guest)
{
	uint32_t flags = __atomic_load_n(&guest->policy->dev[0].flags, __ATOMIC_ACQUIRE);

	return (flags & SLUICE_FLAG_SPILLED) && !(flags & SLUICE_FLAG_REVOKED);
}

bool away_now(void)
{
	const struct sluice_guest *guest = guest_self();

	return guest && is_away(guest);
}

void away_wait(void)
{
	const struct sluice_guest *guest = guest_self();

	while (guest && is_away(guest)) {
		uint32_t wake =
			__atomic_load_n(&guest->policy->control.wake, __ATOMIC_ACQUIRE); /* R5: before the check */
		struct timespec timeout = { .tv_nsec = 10000000 };

		if (is_away(guest))
			syscall(SYS_futex, &guest->policy->control.wake, FUTEX_WAIT, wake, &timeout, NULL, 0);
	}
}
