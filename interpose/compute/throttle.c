/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slow path of a launch: its price, its payment (credit.c, pass.c), and its timing (pipe.c). docs/node/throttle.md
 * describes the whole algorithm.
 */
#include "interpose/compute/throttle.h"

#include "nativecommon/clock.h"
#include "interpose/compute/pass.h"
#include "interpose/compute/pipe.h"
#include "interpose/compute/rules/gate.h"
#include "interpose/compute/timing/settle.h"
#include "interpose/compute/timing/siblings.h"
#include "interpose/compute/timing/switches.h"
#include "interpose/tenant/capture.h"
#include "interpose/tenant/guest.h"
#include "interpose/tenant/moves.h"

static void (*on_launch)(int device, bool loaded);

void throttle_on_launch(void (*callback)(int device, bool loaded))
{
	__atomic_store_n(&on_launch, callback, __ATOMIC_RELEASE);
}

void throttle_forget_local(void)
{
	credit_forget_pipe(&throttle_local);
}

void throttle_context_gone(uint32_t tag)
{
	credit_flush_launches(&throttle_local);
	throttle_forget_local();
	pipe_context_gone(tag);
}

void throttle_green_gone(uint32_t tag)
{
	pipe_home_gone(tag);
}

void throttle_forget_parent(void)
{
	throttle_forget_all();
	throttle_local.credit_ns = 0; /* drawn by the parent, which still has it */
	throttle_local.launches = 0;
	if (throttle_local.lane)
		throttle_local.lane->seen_ns = 0;
	capture_forget_parent();
	pipe_forget_parent();
	siblings_forget_parent();
	switches_forget_parent();
}

void throttle_forget_all(void)
{
	throttle_forget_local();
	cost_relearn_all();
	kin_forget_all();
}

/* The price is known, the credit covers it, and no launch is due for timing: as throttle_charge(), for a shape it did
 * not find. */
static bool pay_from_credit(struct throttle_local *local, const void *handle, const struct cost_shape *shape,
                            uint64_t key, struct cost_entry *entry, uint64_t cost_ns)
{
	if (!cost_ns || local->credit_ns < (int64_t)cost_ns || !cost_is_proven(entry) ||
	    __atomic_load_n(&entry->wary, __ATOMIC_RELAXED))
		return false;
	local->credit_ns -= (int64_t)cost_ns;
	local->launches++;
	if (shape && handle)
		credit_remember(local, handle, shape, key, entry);
	else
		local->expected = local->last = NULL;
	local->event.cost_ns = cost_ns;
	return true;
}

/* True when all launches since the last record had this key. */
static void note_key(struct throttle_local *local, struct throttle_lane *lane, uint64_t key)
{
	if (local->last)
		lane->key = local->last->key;
	lane->mixed = lane->mixed || local->mixed || lane->key != key;
	local->mixed = false;
	lane->key = key;
}

/* Draw the launch's cost, waiting if necessary, or take it from the credit. */
static CUresult pay(struct throttle_local *local, struct pass_ask *ask)
{
	struct throttle_lane *lane = local->lane;
	CUresult result = CUDA_SUCCESS;

	move_if_given_away();
	credit_flush_launches(local);
	if (local->credit_ns < (int64_t)ask->cost_ns) {
		result = pass_gate(ask, &local->credit_ns, gate_mix(++lane->random) >> 48);
		if (result == CUDA_SUCCESS)
			lane->seen_ns += (int64_t)ask->paid_ns;
	} else {
		pass_look_around(ask);
		local->credit_ns -= (int64_t)ask->cost_ns;
	}
	if (result == CUDA_SUCCESS) {
		local->launches++;
		local->event.cost_ns = ask->cost_ns;
		credit_report_use(local);
	}
	return result;
}

/* Open a record for the launch, if one is due. */
static int8_t open_record(struct throttle_lane *lane, struct cost_entry *entry, const struct kin *kin, CUstream stream,
                          const struct pass_ask *ask)
{
	struct pipe_launch launch = { .stream = stream,
		                      .key = lane->key,
		                      .kin = *kin,
		                      .cost_ns = ask->cost_ns,
		                      .window_left_ns = ask->window_left_ns,
		                      .window_ns = ask->window_ns,
		                      .begins_ns = ask->begins_ns,
		                      .contention = ask->contention,
		                      .placed = ask->placed,
		                      .sole = ask->sole,
		                      .alone = ask->alone,
		                      .lent = cost_is_lent(entry),
		                      .mixed = lane->mixed };
	int8_t record = pipe_record_open(ask->pipe, entry, &launch);

	if (record >= 0)
		lane->mixed = false;
	return record;
}

#define TIMED_NEAR 2  /* launches of a new shape that are timed where its function is known */
#define AHEAD_FREE 16 /* launches of unknown length that may be queued where they delay no other grant */

/* A shape that was never timed takes the price of its kin. Where no other grant is at work and no cap binds, a price
 * from launches of about the same size needs no confirmation: records settle it. */
static void borrow_price(struct cost_entry *entry, const struct kin *kin, int device)
{
	struct kin_price price = kin_price(kin);

	if (price.ns)
		cost_lend(entry, price.ns, price.near && pass_is_free(device) ? 0 : TIMED_NEAR);
}

/* Every step that calls the driver on our own behalf, with the thread's capture mode relaxed. */
static CUresult charge_launch(struct throttle_ticket *ticket, struct throttle_local *local, struct cost_entry *entry,
                              const struct kin *kin, CUstream stream)
{
	struct throttle_pipe *pipe = credit_pipe(local->lane);
	uint64_t cost_ns = __atomic_load_n(&entry->cost_ns, __ATOMIC_RELAXED);
	bool known = cost_is_proven(entry) || cost_is_lent(entry);
	bool free = !known && pass_is_free(local->lane->device);
	CUresult result;

	if (!cost_ns && pipe) {
		pipe_await_first_sample(pipe, entry, free ? AHEAD_FREE : 0);
		cost_ns = __atomic_load_n(&entry->cost_ns, __ATOMIC_RELAXED);
	}
	struct pass_ask ask = { .pipe = pipe,
		                .device = local->lane->device,
		                .proven = known || free,
		                .guessed = __atomic_load_n(&entry->wary, __ATOMIC_RELAXED) != 0,
		                .cost_ns = cost_ns ? cost_ns : COST_DEFAULT_NS };

	result = pay(local, &ask);
	if (result != CUDA_SUCCESS)
		return result;
	if (ask.arrived)
		switches_measure(pipe, stream);
	ticket->waited_ns = ask.waited_ns;
	ticket->counted = true;
	if (pipe) {
		ticket->record = open_record(local->lane, entry, kin, stream, &ask);
		ticket->pipe = pipe;
		ticket->cost_ns = ask.cost_ns;
	}
	return CUDA_SUCCESS;
}

CUresult throttle_before(struct throttle_ticket *ticket, const void *handle, const struct cost_shape *shape,
                         CUstream stream)
{
	struct throttle_local *local = &throttle_local;
	int device;

	*ticket = (struct throttle_ticket){ .record = -1 };
	if (!guest_self() || (device = guest_current_device()) < 0)
		return CUDA_SUCCESS;
	struct throttle_lane *lane = credit_lane(local, device);
	uint64_t key = cost_key(handle, shape, device);
	struct cost_entry *entry = cost_entry(key);

	if (!lane || !entry)
		return CUDA_ERROR_OUT_OF_MEMORY;
	credit_pipe(lane);
	note_key(local, lane, key);
	struct kin kin = kin_of(handle, shape, device);

	if (!__atomic_load_n(&entry->cost_ns, __ATOMIC_RELAXED))
		borrow_price(entry, &kin, device);
	if (pay_from_credit(local, handle, shape, key, entry, __atomic_load_n(&entry->cost_ns, __ATOMIC_RELAXED))) {
		ticket->counted = true;
		return CUDA_SUCCESS;
	}
	local->last = shape ? throttle_recall(local, handle, shape) : NULL;
	local->expected = local->last ? local->last->next : NULL;
	if (capture_open() && capture_records(stream, false))
		return CUDA_SUCCESS;
	capture_relax();
	CUresult result = charge_launch(ticket, local, entry, &kin, stream);

	capture_restore();
	return result;
}

/* Attached tracers get here the event that throttle_pass() fires for the common launch. */
static void trace(enum throttle_kind kind, const struct throttle_ticket *ticket)
{
	struct sluice_launch_event *event = &throttle_local.event;

	event->waited_ns = ticket->waited_ns;
	if (kind == THROTTLE_LAUNCH)
		PROBE(SLUICE_PROBE_LAUNCH, event);
	else
		PROBE(SLUICE_PROBE_COPY, event);
	event->waited_ns = 0;
}

void throttle_after(enum throttle_kind kind, struct throttle_ticket *ticket, CUresult result)
{
	struct throttle_pipe *pipe = ticket->pipe;

	if (pipe && result != CUDA_SUCCESS) { /* no work ran: the credit is still there for the next launch */
		throttle_local.credit_ns += (int64_t)ticket->cost_ns;
		throttle_local.launches--;
		ticket->counted = false;
	}
	if (ticket->counted)
		trace(kind, ticket);
	if (!pipe)
		return;
	if (ticket->record < 0)
		return;
	capture_relax();
	uint64_t host_ns = pipe_record_close(pipe, ticket->record, result == CUDA_SUCCESS);

	capture_restore();
	void (*callback)(int, bool) = __atomic_load_n(&on_launch, __ATOMIC_ACQUIRE);

	if (callback && throttle_local.lane)
		callback(throttle_local.lane->device, host_ns > SETTLE_LOADING_NS);
}

void throttle_settle(bool whole_context)
{
	struct throttle_local *local = &throttle_local;

	if (!local->lane || !guest_self())
		return;
	credit_flush_launches(local);
	struct throttle_pipe *pipe = local->lane->pipe;

	credit_report_use(local);
	if (!pipe)
		return;
	capture_relax();

	pipe_reap(pipe);
	capture_restore();
	pipe_settle(pipe, whole_context);
}

void throttle_polled(void)
{
	struct throttle_local *local = &throttle_local;

	if (!guest_self())
		return;
	if (local->lane && (local->launches || local->credit_ns != local->lane->seen_ns)) {
		credit_flush_launches(local);
		credit_report_use(local);
	}
	if (!pipe_any_due(clock_ns()))
		return;
	capture_relax();
	pipe_settle_polled();
	capture_restore();
}
