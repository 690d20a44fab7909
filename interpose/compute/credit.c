/* SPDX-License-Identifier: Apache-2.0 */
/* A thread's lane: the shapes it launched recently, and the report, return or loss of its credit. */
#include "interpose/compute/credit.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/compute/pipe.h"
#include "interpose/compute/rules/gate.h"
#include "interpose/compute/rules/words.h"
#include "interpose/tenant/guest.h"

__thread struct throttle_local throttle_local __attribute__((tls_model("initial-exec")));

static pthread_key_t lane_key;
static pthread_once_t lane_once = PTHREAD_ONCE_INIT;

/* The upper halves are folded in before the multiplication, which would drop them. */
static inline unsigned way_set(const void *function, const struct cost_shape *shape)
{
	uint64_t h = (uint64_t)(uintptr_t)function + ((uint64_t)shape->grid[0] << 32 | shape->block[0]);

	h ^= ((uint64_t)shape->grid[1] << 32 | shape->shared_bytes) + ((uint64_t)shape->grid[2] << 16);
	h ^= h >> 29;
	return (unsigned)(h * UINT64_C(0x9e3779b97f4a7c15) >> 58);
}

static_assert(WAY_SETS == 1 << (64 - 58), "way_set() yields that many");

/* Record that the last launch had this shape. */
static void follow(struct throttle_local *local, struct throttle_way *way)
{
	if (local->last && local->last->next != way)
		local->last->next = way;
}

/* The most recent way comes first, and the other one of the set is evicted. Pointers to either stay valid, but then
 * mean another shape. */
void credit_remember(struct throttle_local *local, const void *function, const struct cost_shape *shape, uint64_t key,
                     struct cost_entry *entry)
{
	struct throttle_way *set = local->lane->way[way_set(function, shape)];

	if (set[0].function != function || !throttle_same_shape(&set[0].shape, shape)) {
		if (set[0].function)
			set[1] = set[0];
		set[0] = (struct throttle_way){ .function = function, .shape = *shape };
	}
	set[0].key = key;
	set[0].entry = entry;
	follow(local, set);
	local->last = set;
	local->expected = set->next;
}

struct throttle_way *throttle_recall(struct throttle_local *local, const void *function, const struct cost_shape *shape)
{
	struct throttle_way *way;

	if (!local->ways || !function) /* the driver reports the error for NULL */
		return NULL;
	way = &local->ways[WAYS * way_set(function, shape)];
	if (way->function != function || !throttle_same_shape(&way->shape, shape))
		way++;
	if (way->function != function || !throttle_same_shape(&way->shape, shape))
		return NULL;
	follow(local, way);
	return way;
}

bool throttle_pass_rare(enum throttle_kind kind, const void *function, const struct cost_shape *shape)
{
	return throttle_pass(kind, function, shape);
}

void credit_flush_launches(struct throttle_local *local)
{
	if (local->launches && local->lane && guest_self()) {
		add64(&guest_usage(local->lane->device)->launches, local->launches);
		local->launches = 0;
	}
}

/* The launch path only subtracts from the credit. The difference since the last report is work handed to the driver;
 * credit itself is in no queue. Without a pipe its completion is never observed, so it counts as done: a grant that
 * looks busy for ever costs its neighbours more. */
void credit_report_use(struct throttle_local *local)
{
	struct throttle_lane *lane = local->lane;
	int64_t used_ns = lane->seen_ns - local->credit_ns; /* negative after launches that failed */

	lane->seen_ns = local->credit_ns;
	if (lane->pipe)
		pipe_mark(lane->pipe, used_ns, lane);
	else if (used_ns > 0 && guest_self())
		add64(&guest_usage(lane->device)->completed_ns, (uint64_t)used_ns);
}

/* Return unused credit, so that a thread that ends or changes devices keeps none. */
static void return_credit(struct throttle_local *local)
{
	if (local->lane)
		credit_report_use(local);
	if (local->credit_ns > 0 && local->lane && guest_self()) {
		struct sluice_policy_device policy;
		uint64_t unused_ns = (uint64_t)local->credit_ns;

		guest_read_device(local->lane->device, &policy);
		take64(guest_shared_tat(local->lane->device),
		       gate_price_ns(unused_ns, gate_effective_ppm(policy.share_ppm, policy.plan_ppm)));
		take64(&guest_usage(local->lane->device)->consumed_ns, unused_ns);
	}
	local->credit_ns = 0;
	if (local->lane)
		local->lane->seen_ns = 0;
}

static void lane_gone(void *value)
{
	struct throttle_local *local = &throttle_local;

	local->expected = local->last = NULL;
	if (local->lane == value) {
		credit_flush_launches(local);
		return_credit(local);
		local->lane = NULL;
		local->ways = NULL;
	}
	free(value);
}

static void lane_key_make(void)
{
	pthread_key_create(&lane_key, lane_gone);
}

/* The fields of the event that stay the same from launch to launch. */
static void name_event(struct throttle_local *local, int device)
{
	const uint8_t *uuid = guest_self()->policy->header.grant_uuid;

	local->event.grant = 0;
	for (int i = 0; i < 8; i++)
		local->event.grant = local->event.grant << 8 | uuid[i];
	local->event.device = (uint32_t)device;
}

struct throttle_lane *credit_lane(struct throttle_local *local, int device)
{
	if (!local->lane) {
		pthread_once(&lane_once, lane_key_make);
		local->lane = aligned_alloc(_Alignof(struct throttle_lane), sizeof(*local->lane));
		if (!local->lane)
			return NULL;
		memset(local->lane, 0, sizeof(*local->lane));
		local->lane->device = device;
		pthread_setspecific(lane_key, local->lane);
		name_event(local, device);
	}
	if (local->lane->device != device) {
		credit_flush_launches(local);
		return_credit(local);
		local->lane->device = device;
		local->lane->pipe = NULL;
		memset(local->lane->way, 0, sizeof(local->lane->way));
		local->expected = local->last = NULL;
		name_event(local, device);
	}
	local->ways = &local->lane->way[0][0];
	return local->lane;
}

struct throttle_pipe *credit_pipe(struct throttle_lane *lane)
{
	if (!lane->pipe)
		lane->pipe = pipe_of_current(lane->device);
	return lane->pipe;
}

void credit_forget_pipe(struct throttle_local *local)
{
	local->expected = local->last = NULL;
	local->ways = NULL;
	if (local->lane && local->lane->pipe) {
		credit_report_use(local);
		local->lane->pipe = NULL;
	}
}
