/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process as a tenant: its slot, its devices, and the decision whether a call is charged.
 *
 * The state of the process lives in one page that the kernel wipes on fork (MADV_WIPEONFORK), however the child was
 * made, so a child is not a tenant until its own cuInit. The state of the grant (the mappings) is shared with children.
 * No lock: attaching is a small state machine, and the loser of a race waits for the winner.
 */
#include "interpose/tenant/guest.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "interpose/attach/attach.h"
#include "nativecommon/clock.h"
#include "interpose/driver/driver.h"
#include "interpose/tenant/guest_page.h"
#include "interpose/tenant/moves.h"

enum { DETACHED, ATTACHING, ATTACHED, READY };

struct guest_page *guest_page; /* NULL until the first attach; wiped, not unmapped, in a child */

/* Survives fork on purpose: a thread's cached device must not be used after the child has attached again. */
static uint32_t attach_count;

/* Per thread: whether it is inside a hook, and the device of the current context. */
struct thread_state {
	uint32_t depth;
	uint32_t epoch;   /* epoch of guest_page when `device` was queried; 0 = query again */
	uint32_t context; /* tag of the current context */
	int device;
};
static __thread struct thread_state self __attribute__((tls_model("initial-exec")));

/* --- attaching -------------------------------------------------------------------------------------------------- */

/* One line on stderr, once: a framework may call cuInit again and again. */
static void say_once(bool *said, const char *what, const char *why)
{
	char line[256];
	int n;

	if (__atomic_load_n(said, __ATOMIC_RELAXED) || __atomic_exchange_n(said, true, __ATOMIC_RELAXED))
		return;
	n = snprintf(line, sizeof(line), "sluice: %s %d: %s\n", what, (int)getpid(), why);
	if (n > 0 && write(STDERR_FILENO, line, (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1) < 0)
		return; /* stderr is closed or full */
}

void guest_refuse(const char *why)
{
	static bool said;

	say_once(&said, "no GPU for process", why);
}

void guest_note_no_room(uint64_t bytes, uint64_t left_bytes)
{
	static bool said;
	char why[128];

	snprintf(why, sizeof(why), "it takes %llu MiB of GPU memory, and %llu MiB of the grant are free",
	         (unsigned long long)((bytes + (1 << 20) - 1) >> 20), (unsigned long long)(left_bytes >> 20));
	say_once(&said, "no CUDA context for process", why);
}

void guest_introduce(const struct attach_slot *slot)
{
	struct sluice_usage_slot *s = &guest_page->guest.usage->slot[slot->slot];
	const struct attach_identity *identity = &guest_page->identity;

	__atomic_store_n(&s->ns_pid, identity->ns_pid, __ATOMIC_RELAXED);
	__atomic_store_n(&s->process, identity->process, __ATOMIC_RELAXED);
	__atomic_store_n(&s->image, identity->image, __ATOMIC_RELAXED);
	__atomic_store_n(&s->hook_mask, driver_hook_mask, __ATOMIC_RELAXED);
	__atomic_store_n(&s->status,
	                 SLUICE_SLOT_COUNTS |
	                         (__atomic_load_n(&guest_page->waiting, __ATOMIC_RELAXED) & SLUICE_SLOT_WAITING),
	                 __ATOMIC_RELAXED);
	__atomic_store_n(&s->heartbeat_ns, clock_ns(), __ATOMIC_RELAXED);
	__atomic_store_n(&s->generation_seen, slot->generation, __ATOMIC_RELEASE);
}

static int attach_now(struct guest_page *page, bool (*prepare)(void))
{
	struct attach_identity identity;
	struct attach_region region;
	struct attach_slot slot;
	int error;

	error = attach_map(&region);
	if (!error && !prepare())
		error = -ENOTSUP;
	if (!error)
		error = attach_identify(&identity);
	if (!error)
		error = attach_register(&region, &identity, driver_hook_mask, &slot);
	if (error)
		return error;
	page->identity = identity;
	page->guest.policy = region.policy;
	page->guest.usage = region.usage;
	page->slot = slot.slot;
	page->generation = slot.generation;
	for (int i = 0; i < SLUICE_MAX_DEVICES; i++)
		page->tally[i].charged = (uint64_t)slot.slot << TALLY_SLOT_SHIFT;
	memset(page->guest.device_of_ordinal, -1, sizeof(page->guest.device_of_ordinal));
	page->epoch = __atomic_add_fetch(&attach_count, 1, __ATOMIC_RELAXED);
	guest_introduce(&slot);
	return 0;
}

#define NO_WIPED_PAGE "no page that is wiped on fork (Linux 4.14 or later is needed)"

int guest_attach(bool (*prepare)(void))
{
	struct guest_page *page = wiped_memory((void **)&guest_page, sizeof(*page));
	uint32_t was = DETACHED;
	int error;

	if (!page) {
		guest_refuse(NO_WIPED_PAGE);
		return -ENOTSUP;
	}
	while (!__atomic_compare_exchange_n(&page->state, &was, ATTACHING, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		if (was != ATTACHING)
			return 0;
		/* another thread is attaching: at most the registration deadline and a little more */
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
		was = DETACHED;
	}
	error = attach_now(page, prepare);
	__atomic_store_n(&page->state, error ? DETACHED : ATTACHED, __ATOMIC_RELEASE);
	if (error)
		guest_refuse(error == -ENOTSUP ? NO_WIPED_PAGE : attach_strerror(error));
	return error;
}

/* CUDA_VISIBLE_DEVICES renumbers CUDA ordinals; only the UUID identifies a GPU to both sides. */
static int8_t device_of(const struct sluice_policy *policy, CUdevice dev)
{
	uint32_t count = policy->header.device_count;
	CUuuid uuid;

	if (!driver.cuDeviceGetUuid_v2 || driver.cuDeviceGetUuid_v2(&uuid, dev) != CUDA_SUCCESS) {
		if (!driver.cuDeviceGetUuid || driver.cuDeviceGetUuid(&uuid, dev) != CUDA_SUCCESS)
			return -1;
	}
	for (uint32_t i = 0; i < count && i < SLUICE_MAX_DEVICES; i++)
		if (memcmp(policy->dev[i].gpu_uuid, uuid.bytes, sizeof(uuid.bytes)) == 0)
			return (int8_t)i;
	return -1;
}

void guest_find_devices(void)
{
	struct guest_page *page = __atomic_load_n(&guest_page, __ATOMIC_ACQUIRE);
	int count = 0;

	if (!page || __atomic_load_n(&page->state, __ATOMIC_ACQUIRE) != ATTACHED)
		return;
	if (!driver.cuDeviceGetCount || driver.cuDeviceGetCount(&count) != CUDA_SUCCESS || count < 0)
		count = 0;
	if (count > (int)sizeof(page->guest.device_of_ordinal))
		count = (int)sizeof(page->guest.device_of_ordinal);
	/* racing threads find the same result */
	for (int i = 0; i < count; i++)
		__atomic_store_n(&page->guest.device_of_ordinal[i], device_of(page->guest.policy, i), __ATOMIC_RELAXED);
	__atomic_store_n(&page->guest.device_count, (uint32_t)count, __ATOMIC_RELAXED);
	__atomic_store_n(&page->state, READY, __ATOMIC_RELEASE);
}

const struct sluice_guest *guest_self(void)
{
	struct guest_page *page = __atomic_load_n(&guest_page, __ATOMIC_RELAXED);

	if (!page || __atomic_load_n(&page->state, __ATOMIC_ACQUIRE) != READY)
		return NULL;
	return &page->guest;
}

/* --- queries from the hooks ------------------------------------------------------------------------------------ */

bool guest_enter(void)
{
	if (!guest_self() || self.depth)
		return false;
	self.depth = 1;
	return true;
}

void guest_leave(void)
{
	self.depth = 0;
}

int guest_current_device(void)
{
	const struct guest_page *page = guest_page;
	CUcontext context = NULL;
	CUdevice dev;

	if (!guest_self())
		return -1;
	if (self.epoch == page->epoch)
		return self.device;
	if (!driver.cuCtxGetDevice || driver.cuCtxGetDevice(&dev) != CUDA_SUCCESS)
		return -1; /* no context yet: query again next time */
	self.device = guest_device_of_ordinal(dev);
	if (!driver.cuCtxGetCurrent || driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS)
		context = NULL;
	self.context = guest_context_tag(context);
	self.epoch = page->epoch;
	return self.device;
}

/* 32 bits of a hash: two live contexts share a tag with probability 2^-32. */
uint32_t guest_context_tag(CUcontext context)
{
	return (uint32_t)(((uintptr_t)context * UINT64_C(0x9e3779b97f4a7c15)) >> 32);
}

uint32_t guest_current_context(void)
{
	return guest_current_device() >= 0 ? self.context : 0;
}

void guest_forget_current_device(void)
{
	self.epoch = 0;
}

int guest_device_of_ordinal(CUdevice ordinal)
{
	const struct sluice_guest *guest = guest_self();

	if (!guest || ordinal < 0 || ordinal >= (int)sizeof(guest->device_of_ordinal))
		return -1;
	return guest->device_of_ordinal[ordinal];
}

uint32_t guest_slot(void)
{
	return __atomic_load_n(&guest_page->slot, __ATOMIC_ACQUIRE);
}

uint32_t guest_host_pid(void)
{
	uint64_t generation = __atomic_load_n(&guest_page->generation, __ATOMIC_ACQUIRE);

	return generation & 1 ? guest_page->guest.policy->dir[guest_slot()].host_pid : 0;
}

struct sluice_usage_device *guest_usage(int device)
{
	return &guest_page->guest.usage->slot[guest_slot()].dev[device];
}

void guest_heartbeat(uint64_t now_ns)
{
	static bool said;

	__atomic_store_n(&guest_page->guest.usage->slot[guest_slot()].heartbeat_ns, now_ns, __ATOMIC_RELAXED);
	/* A program that stands still explains why in one line on stderr: only the gate calls this, and a detection
	 * pauses a grant before it freezes its processes. */
	if (__atomic_load_n(&guest_page->guest.policy->dev[0].flags, __ATOMIC_RELAXED) & SLUICE_FLAG_PAUSED)
		say_once(&said, "launches wait in process",
		         "its grant is paused or held; `sluice ps` says why and how it goes on");
}

/* Of the process: its slot may change during a wait. */
static void publish_waiting(void)
{
	uint32_t *status = &guest_page->guest.usage->slot[guest_slot()].status;
	uint32_t waiting;

	do { /* another thread may have changed the number before our store: then it is stored again */
		waiting = __atomic_load_n(&guest_page->waiting, __ATOMIC_SEQ_CST);
		__atomic_store_n(status, SLUICE_SLOT_COUNTS | (waiting & SLUICE_SLOT_WAITING), __ATOMIC_SEQ_CST);
	} while (waiting != __atomic_load_n(&guest_page->waiting, __ATOMIC_SEQ_CST));
}

void guest_waits(int change)
{
	__atomic_fetch_add(&guest_page->waiting, (uint32_t)change, __ATOMIC_SEQ_CST);
	publish_waiting();
}

void guest_count_unknown_symbol(void)
{
	if (guest_self())
		__atomic_fetch_add(&guest_page->guest.usage->slot[guest_slot()].unknown_symbols, 1, __ATOMIC_RELAXED);
}

void guest_count_unknown_table(void)
{
	if (guest_self())
		__atomic_fetch_add(&guest_page->guest.usage->slot[guest_slot()].unknown_tables, 1, __ATOMIC_RELAXED);
}

void guest_count_failed_record(void)
{
	if (guest_self())
		__atomic_fetch_add(&guest_page->guest.usage->slot[guest_slot()].failed_records, 1, __ATOMIC_RELAXED);
}

void guest_read_device(int device, struct sluice_policy_device *ret_device)
{
	struct guest_page *page = guest_page;
	struct sluice_policy_device fresh;
	uint32_t seq;

	if (sluice_policy_read_device(page->guest.policy, (uint32_t)device, &fresh) == 0) {
		uint64_t epoch = __atomic_load_n(&page->guest.policy->control.epoch, __ATOMIC_ACQUIRE);

		*ret_device = fresh;
		/* keep a copy in case the daemon dies mid-write; a copy that another thread is writing is as good */
		if (__atomic_load_n(&page->last_epoch[device], __ATOMIC_RELAXED) == epoch)
			return;
		seq = __atomic_load_n(&page->last_seq[device], __ATOMIC_RELAXED);
		if ((seq & 1) || !__atomic_compare_exchange_n(&page->last_seq[device], &seq, seq + 1, false,
		                                              __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return;
		__atomic_thread_fence(__ATOMIC_RELEASE);
		for (size_t i = 0; i < GUEST_DEVICE_WORDS; i++)
			__atomic_store_n(&page->last[device][i], ((guest_word *)&fresh)[i], __ATOMIC_RELAXED);
		__atomic_store_n(&page->last_epoch[device], epoch, __ATOMIC_RELAXED);
		__atomic_store_n(&page->last_seq[device], seq + 2, __ATOMIC_RELEASE);
		return;
	}
	do { /* the writer is one of our threads with 16 stores left */
		seq = __atomic_load_n(&page->last_seq[device], __ATOMIC_ACQUIRE);
		for (size_t i = 0; i < GUEST_DEVICE_WORDS; i++)
			((guest_word *)&fresh)[i] = __atomic_load_n(&page->last[device][i], __ATOMIC_RELAXED);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
	} while ((seq & 1) || __atomic_load_n(&page->last_seq[device], __ATOMIC_RELAXED) != seq);
	if (seq == 0) {
		/* there was never a good copy: read the words one by one, each is correct by itself, and enforce
		 * them */
		for (size_t i = 0; i < GUEST_DEVICE_WORDS; i++)
			((guest_word *)&fresh)[i] = __atomic_load_n(
				(const guest_word *)&page->guest.policy->dev[device] + i, __ATOMIC_RELAXED);
	}
	*ret_device = fresh;
}

uint64_t guest_memory_limit(int device)
{
	const struct sluice_policy_device *d = &guest_page->guest.policy->dev[device];
	uint32_t flags = __atomic_load_n(&d->flags, __ATOMIC_ACQUIRE);

	if (flags & SLUICE_FLAG_REVOKED)
		return 0;
	if (!(flags & SLUICE_FLAG_ENFORCE_MEMORY))
		return UINT64_MAX;
	return __atomic_load_n(&d->memory_limit_bytes, __ATOMIC_ACQUIRE);
}

bool guest_managed_beyond(int device)
{
	uint32_t flags = __atomic_load_n(&guest_page->guest.policy->dev[device].flags, __ATOMIC_ACQUIRE);

	return (flags & SLUICE_FLAG_MANAGED_BEYOND) && !(flags & SLUICE_FLAG_REVOKED);
}
