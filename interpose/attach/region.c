/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one implementation of the ordering pairs R1 to R6 of proto/region.h, both sides of each.
 *
 * Everything is plain loads and stores with the memory order named beside them, except for one futex wake: the
 * interposer runs this in other people's processes and the daemon calls it by ctypes, so nothing here may allocate,
 * lock, log or read a clock. Every value from usage.shm was written by a tenant and is clamped before it is used as an
 * index.
 */
#include "interpose/attach/region.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Lines A and B are copied as words, so that their fields need no list here. */
typedef uint64_t __attribute__((may_alias)) word_t;

#define LINE_WORDS (SLUICE_LINE / sizeof(word_t))
#define READ_TRIES 64   /* a write is a few dozen stores: after 64 failures the daemon was stopped mid-write */
#define RESERVE_TRIES 4 /* the first and three more: in measurements 1 in 10,000 is retried */
/* No GPU has 2^56 bytes. Above it a sum over 256 slots could wrap, and a wrapped sum would pass every limit. */
#define SANE_BYTES (UINT64_C(1) << 56)

/* --- the daemon's side ---------------------------------------------------------------------------------------- */

static void write_line(void *to, const void *from, int order)
{
	word_t *t = to;
	const word_t *f = from;

	for (size_t i = 0; i < LINE_WORDS; i++)
		__atomic_store_n(&t[i], f[i], order);
}

int sluice_policy_wake(struct sluice_policy *policy)
{
	/* R5: pairs with the acquire load before FUTEX_WAIT in the tenant */
	__atomic_fetch_add(&policy->control.wake, 1, __ATOMIC_RELEASE);
	/* not FUTEX_PRIVATE: the waiters are other processes, with a read-only mapping of the same page */
	if (syscall(SYS_futex, &policy->control.wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0) < 0)
		return -errno;
	return 0;
}

int sluice_policy_publish(struct sluice_policy *policy, const struct sluice_policy *draft)
{
	if (draft->header.device_count == 0 || draft->header.device_count > SLUICE_MAX_DEVICES)
		return -EINVAL;
	if (draft->driver_path[SLUICE_PATH_BYTES - 1] || draft->nvml_path[SLUICE_PATH_BYTES - 1])
		return -ENAMETOOLONG;
	if (__atomic_load_n(&policy->header.magic, __ATOMIC_RELAXED) != 0)
		return -EEXIST;
	*policy = *draft;
	/* no reader may see the magic before the plain stores above */
	__atomic_store_n(&policy->header.magic, 0, __ATOMIC_RELAXED);
	policy->header.major = SLUICE_REGION_MAJOR;
	policy->header.minor = SLUICE_REGION_MINOR;
	policy->header.header_bytes = offsetof(struct sluice_policy, dir);
	policy->header.total_bytes = SLUICE_POLICY_BYTES;
	policy->header.slot_count = SLUICE_MAX_SLOTS;
	policy->header.slot_bytes = sizeof(struct sluice_usage_slot);
	policy->control.seq = 0;
	policy->control.wake = 0;
	if (policy->control.epoch == 0)
		policy->control.epoch = 1; /* readers start from epoch 0 = "not read yet" */
	/* R1: pairs with the acquire load in sluice_policy_check() */
	__atomic_store_n(&policy->header.magic, SLUICE_POLICY_MAGIC, __ATOMIC_RELEASE);
	return 0;
}

/* R2, writer: seq odd -> the words -> seq even. An odd seq found here was left by a daemon that died mid-write. */
static uint32_t seq_begin(struct sluice_policy *policy)
{
	uint32_t odd = __atomic_load_n(&policy->control.seq, __ATOMIC_RELAXED) | 1;

	__atomic_store_n(&policy->control.seq, odd, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	return odd;
}

static void seq_end(struct sluice_policy *policy, uint32_t odd)
{
	__atomic_store_n(&policy->control.seq, odd + 1, __ATOMIC_RELEASE);
	__atomic_fetch_add(&policy->control.epoch, 1, __ATOMIC_RELEASE);
}

int sluice_policy_recover(struct sluice_policy *policy, const struct sluice_policy *draft)
{
	uint32_t odd;

	if (sluice_policy_check(policy, SLUICE_POLICY_BYTES, NULL) != 0 ||
	    draft->header.device_count != policy->header.device_count)
		return -EBADMSG;
	odd = seq_begin(policy);
	for (uint32_t i = 0; i < policy->header.device_count; i++)
		write_line(&policy->dev[i], &draft->dev[i], __ATOMIC_RELAXED);
	seq_end(policy, odd);
	return sluice_policy_wake(policy);
}

int sluice_policy_set_limits(struct sluice_policy *policy, uint32_t device, const struct sluice_policy_device *limits)
{
	uint32_t odd;

	if (device >= SLUICE_MAX_DEVICES || device >= policy->header.device_count)
		return -EINVAL;
	odd = seq_begin(policy);
	write_line(&policy->dev[device], limits, __ATOMIC_RELAXED);
	seq_end(policy, odd);
	return sluice_policy_wake(policy);
}

int sluice_policy_set_turn(struct sluice_policy *policy, uint32_t device, const struct sluice_policy_device *turn,
                           bool wake)
{
	if (device >= SLUICE_MAX_DEVICES || device >= policy->header.device_count)
		return -EINVAL;
	/* R6: word by word */
	write_line(&policy->dev[device].lease_origin_ns, &turn->lease_origin_ns, __ATOMIC_RELEASE);
	return wake ? sluice_policy_wake(policy) : 0;
}

void sluice_policy_heartbeat(struct sluice_policy *policy, uint64_t now_ns)
{
	__atomic_store_n(&policy->control.heartbeat_ns, now_ns, __ATOMIC_RELAXED);
}

void sluice_policy_set_population(struct sluice_policy *policy, uint32_t live_slots, uint32_t slot_high)
{
	/* a bound below a live slot would drop that slot from every sum, so such a value is raised */
	for (uint32_t i = SLUICE_MAX_SLOTS; i > slot_high; i--) {
		if (__atomic_load_n(&policy->dir[i - 1].generation, __ATOMIC_RELAXED) & 1) {
			slot_high = i;
			break;
		}
	}
	if (slot_high > SLUICE_MAX_SLOTS)
		slot_high = SLUICE_MAX_SLOTS;
	__atomic_store_n(&policy->control.live_slots, live_slots, __ATOMIC_RELAXED);
	__atomic_store_n(&policy->control.slot_high, slot_high, __ATOMIC_SEQ_CST);
}

int sluice_policy_own_slot(struct sluice_policy *policy, uint32_t slot, const struct sluice_policy_entry *entry,
                           uint64_t *ret_generation)
{
	struct sluice_policy_entry *e;
	uint64_t generation;

	if (slot >= SLUICE_MAX_SLOTS)
		return -EINVAL;
	e = &policy->dir[slot];
	generation = __atomic_load_n(&e->generation, __ATOMIC_RELAXED);
	if (generation & 1)
		return -EBUSY;
	/* R4 needs both stores before the owner's first charge in the single total order: seq_cst */
	if (__atomic_load_n(&policy->control.slot_high, __ATOMIC_RELAXED) <= slot)
		__atomic_store_n(&policy->control.slot_high, slot + 1, __ATOMIC_SEQ_CST);
	__atomic_store_n(&e->starttime, entry->starttime, __ATOMIC_RELAXED);
	__atomic_store_n(&e->host_pid, entry->host_pid, __ATOMIC_RELAXED);
	__atomic_store_n(&e->ns_pid, entry->ns_pid, __ATOMIC_RELAXED);
	__atomic_store_n(&e->flags, entry->flags, __ATOMIC_RELAXED);
	/* R3: pairs with the acquire load in slot_is_live() */
	__atomic_store_n(&e->generation, generation + 1, __ATOMIC_SEQ_CST);
	*ret_generation = generation + 1;
	return 0;
}

int sluice_policy_free_slot(struct sluice_policy *policy, uint32_t slot)
{
	uint64_t generation;

	if (slot >= SLUICE_MAX_SLOTS)
		return -EINVAL;
	generation = __atomic_load_n(&policy->dir[slot].generation, __ATOMIC_RELAXED);
	if (!(generation & 1))
		return -ENOENT;
	__atomic_store_n(&policy->dir[slot].generation, generation + 1, __ATOMIC_SEQ_CST);
	return 0;
}

/* --- both sides ------------------------------------------------------------------------------------------------ */

int sluice_policy_check(const struct sluice_policy *policy, size_t bytes, const uint8_t boot_id[16])
{
	const struct sluice_policy_header *h = &policy->header;
	uint64_t magic;
	uint32_t devices;

	if (bytes < SLUICE_POLICY_BYTES)
		return -EBADMSG;
	/* R1: pairs with the release store in sluice_policy_publish() */
	magic = __atomic_load_n(&h->magic, __ATOMIC_ACQUIRE);
	if (magic == 0)
		return -EAGAIN;
	if (magic != SLUICE_POLICY_MAGIC)
		return -EBADMSG;
	if (__atomic_load_n(&h->major, __ATOMIC_RELAXED) != SLUICE_REGION_MAJOR)
		return -EPROTO;
	devices = __atomic_load_n(&h->device_count, __ATOMIC_RELAXED);
	if (devices == 0 || devices > SLUICE_MAX_DEVICES)
		return -EBADMSG;
	if (__atomic_load_n(&h->header_bytes, __ATOMIC_RELAXED) != offsetof(struct sluice_policy, dir) ||
	    __atomic_load_n(&h->total_bytes, __ATOMIC_RELAXED) != SLUICE_POLICY_BYTES ||
	    __atomic_load_n(&h->slot_count, __ATOMIC_RELAXED) != SLUICE_MAX_SLOTS ||
	    __atomic_load_n(&h->slot_bytes, __ATOMIC_RELAXED) != sizeof(struct sluice_usage_slot))
		return -EBADMSG;
	if (policy->driver_path[SLUICE_PATH_BYTES - 1] || policy->nvml_path[SLUICE_PATH_BYTES - 1])
		return -EBADMSG;
	if (boot_id && memcmp(h->boot_id, boot_id, sizeof(h->boot_id)) != 0)
		return -ESTALE;
	return 0;
}

int sluice_usage_check(const struct sluice_usage *usage, size_t bytes)
{
	if (bytes < SLUICE_USAGE_BYTES)
		return -EBADMSG;
	if (__atomic_load_n(&usage->header.magic, __ATOMIC_ACQUIRE) != SLUICE_USAGE_MAGIC)
		return -EBADMSG;
	if (__atomic_load_n(&usage->header.major, __ATOMIC_RELAXED) != SLUICE_REGION_MAJOR)
		return -EPROTO;
	return 0;
}

void sluice_usage_format(struct sluice_usage *usage)
{
	usage->header.major = SLUICE_REGION_MAJOR;
	usage->header.minor = SLUICE_REGION_MINOR;
	usage->header.claim_high = 0;
	__atomic_store_n(&usage->header.magic, SLUICE_USAGE_MAGIC, __ATOMIC_RELEASE);
}

int sluice_policy_read_device(const struct sluice_policy *policy, uint32_t device,
                              struct sluice_policy_device *ret_device)
{
	word_t copy[2 * LINE_WORDS];
	const word_t *from;
	uint32_t seq;

	if (device >= SLUICE_MAX_DEVICES)
		return -EINVAL;
	from = (const word_t *)&policy->dev[device];
	for (int i = 0; i < READ_TRIES; i++) {
		/* R2, reader */
		seq = __atomic_load_n(&policy->control.seq, __ATOMIC_ACQUIRE);
		if (seq & 1)
			continue;
		for (size_t w = 0; w < LINE_WORDS; w++)
			copy[w] = __atomic_load_n(&from[w], __ATOMIC_RELAXED);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (__atomic_load_n(&policy->control.seq, __ATOMIC_RELAXED) != seq)
			continue;
		/* R6 */
		for (size_t w = LINE_WORDS; w < 2 * LINE_WORDS; w++)
			copy[w] = __atomic_load_n(&from[w], __ATOMIC_ACQUIRE);
		memcpy(ret_device, copy, sizeof(*ret_device));
		return 0;
	}
	return -EAGAIN;
}

/* --- the tenant's side ------------------------------------------------------------------------------------------ */

static bool slot_is_live(const struct sluice_policy *policy, const struct sluice_usage *usage, uint32_t slot)
{
	/* R3: pairs with the store in sluice_policy_own_slot(); seq_cst because R4 relies on it */
	if (__atomic_load_n(&policy->dir[slot].generation, __ATOMIC_SEQ_CST) & 1)
		return true;
	return __atomic_load_n(&usage->slot[slot].self_claim, __ATOMIC_SEQ_CST) != 0;
}

static uint64_t sum_charged(const struct sluice_policy *policy, const struct sluice_usage *usage, uint32_t device,
                            uint32_t own_slot)
{
	uint32_t high = __atomic_load_n(&policy->control.slot_high, __ATOMIC_SEQ_CST);
	uint32_t claimed = __atomic_load_n(&usage->header.claim_high, __ATOMIC_SEQ_CST);
	uint64_t sum = 0;

	if (high < claimed)
		high = claimed;
	if (own_slot < SLUICE_MAX_SLOTS && high <= own_slot)
		high = own_slot + 1;
	if (high > SLUICE_MAX_SLOTS)
		high = SLUICE_MAX_SLOTS;
	for (uint32_t i = 0; i < high; i++) {
		uint64_t charged = __atomic_load_n(&usage->slot[i].dev[device].charged_bytes, __ATOMIC_SEQ_CST);

		/* read the charge first: a slot that became ours after the load cannot have charged before it */
		if (charged == 0 || (i != own_slot && !slot_is_live(policy, usage, i)))
			continue;
		sum += charged;
		if (sum < charged)
			return UINT64_MAX;
	}
	return sum;
}

uint64_t sluice_memory_charged(const struct sluice_policy *policy, const struct sluice_usage *usage, uint32_t device)
{
	if (device >= SLUICE_MAX_DEVICES)
		return 0;
	return sum_charged(policy, usage, device, UINT32_MAX);
}

static inline void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* Two racing reservers that both saw each other must not collide again at once: each waits a different time. */
static void jitter(uint32_t slot, uint64_t charged, int attempt)
{
	uint64_t mix = ((uint64_t)slot + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ charged ^ (uintptr_t)&mix;

	mix ^= mix >> 29;
	mix *= UINT64_C(0xbf58476d1ce4e5b9);
	for (uint64_t n = (mix >> 32) % (UINT64_C(64) << attempt); n > 0; n--)
		relax();
}

int sluice_memory_reserve(const struct sluice_policy *policy, struct sluice_usage *usage, uint32_t slot,
                          uint32_t device, uint64_t bytes, uint64_t limit_bytes)
{
	struct sluice_usage_device *own;
	uint64_t charged, peak;

	if (slot >= SLUICE_MAX_SLOTS || device >= SLUICE_MAX_DEVICES)
		return -EINVAL;
	own = &usage->slot[slot].dev[device];
	for (int attempt = 0; bytes <= limit_bytes && bytes < SANE_BYTES && attempt < RESERVE_TRIES; attempt++) {
		if (attempt > 0)
			jitter(slot, bytes, attempt);
		/* R4: the add, then the sum. Of two reservers at least one sees the other's add in its sum. */
		charged = __atomic_add_fetch(&own->charged_bytes, bytes, __ATOMIC_SEQ_CST);
		if (sum_charged(policy, usage, device, slot) <= limit_bytes) {
			/* our own word may include what another of our threads has added and is about to take back */
			if (charged > limit_bytes)
				charged = limit_bytes;
			peak = __atomic_load_n(&own->peak_bytes, __ATOMIC_RELAXED);
			while (peak < charged && !__atomic_compare_exchange_n(&own->peak_bytes, &peak, charged, true,
			                                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED))
				continue;
			__atomic_fetch_add(&own->allocs, 1, __ATOMIC_RELAXED);
			return 0;
		}
		sluice_memory_release(usage, slot, device, bytes);
		/* the sum exceeds the limit even without our charge: no retry can succeed */
		if (sum_charged(policy, usage, device, slot) > limit_bytes - bytes)
			break;
	}
	__atomic_fetch_add(&own->denied, 1, __ATOMIC_RELAXED);
	return -ENOMEM;
}

void sluice_memory_release(struct sluice_usage *usage, uint32_t slot, uint32_t device, uint64_t bytes)
{
	uint64_t *charged, was;

	if (slot >= SLUICE_MAX_SLOTS || device >= SLUICE_MAX_DEVICES)
		return;
	charged = &usage->slot[slot].dev[device].charged_bytes;
	was = __atomic_load_n(charged, __ATOMIC_RELAXED);
	/* Not below 0: after a change of slots, something charged in the old slot may be returned to the new one, and a
	 * wrapped word would refuse all allocations of the grant. */
	while (!__atomic_compare_exchange_n(charged, &was, was > bytes ? was - bytes : 0, true, __ATOMIC_SEQ_CST,
	                                    __ATOMIC_RELAXED))
		continue;
}

/* True if the slot belongs to a program that this process ran before its last exec. */
static bool slot_is_of_before(const struct sluice_usage_slot *s, uint64_t process, uint64_t image)
{
	uint64_t before = __atomic_load_n(&s->image, __ATOMIC_RELAXED);

	return process && image && before && before != image &&
	       __atomic_load_n(&s->process, __ATOMIC_RELAXED) == process;
}

static void slot_forget(struct sluice_usage_slot *s)
{
	for (int d = 0; d < SLUICE_MAX_DEVICES; d++) {
		uint64_t consumed = __atomic_load_n(&s->dev[d].consumed_ns, __ATOMIC_RELAXED);

		__atomic_store_n(&s->dev[d].charged_bytes, 0, __ATOMIC_SEQ_CST);
		__atomic_store_n(&s->dev[d].completed_ns, consumed, __ATOMIC_RELAXED); /* nothing is in flight */
	}
}

void sluice_slot_forget_before(struct sluice_usage *usage, uint64_t process, uint64_t image, uint32_t own)
{
	for (uint32_t i = 0; i < SLUICE_MAX_SLOTS; i++)
		if (i != own && slot_is_of_before(&usage->slot[i], process, image))
			slot_forget(&usage->slot[i]);
}

int sluice_slot_inherit(const struct sluice_policy *policy, struct sluice_usage *usage, uint32_t ns_pid,
                        uint64_t process, uint64_t image, uint32_t *ret_slot)
{
	for (uint32_t i = 0; i < SLUICE_MAX_SLOTS; i++) {
		struct sluice_usage_slot *s = &usage->slot[i];
		uint64_t before = __atomic_load_n(&s->image, __ATOMIC_RELAXED);

		if (!slot_is_of_before(s, process, image) ||
		    __atomic_load_n(&s->self_claim, __ATOMIC_SEQ_CST) >> 32 != ns_pid ||
		    __atomic_load_n(&policy->dir[i].generation, __ATOMIC_SEQ_CST) & 1)
			continue;
		/* one of the copies of this library that a process may have (dlmopen) wins */
		if (!__atomic_compare_exchange_n(&s->image, &before, image, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
			continue;
		slot_forget(s);
		*ret_slot = i;
		return 0;
	}
	return -ENOENT;
}

int sluice_slot_claim(const struct sluice_policy *policy, struct sluice_usage *usage, uint32_t ns_pid,
                      uint64_t starttime, uint32_t *ret_slot)
{
	uint64_t claim = (uint64_t)ns_pid << 32 | 1; /* the tag keeps a claim non-zero when ns_pid is 0 */

	for (uint32_t i = 0; i < SLUICE_MAX_SLOTS; i++) {
		struct sluice_usage_slot *s = &usage->slot[i];
		uint64_t unclaimed = 0;
		uint32_t high;

		if (slot_is_live(policy, usage, i))
			continue;
		/* raise the bound before the claim: a sum that must include our charge has to reach our slot */
		high = __atomic_load_n(&usage->header.claim_high, __ATOMIC_RELAXED);
		while (high <= i && !__atomic_compare_exchange_n(&usage->header.claim_high, &high, i + 1, false,
		                                                 __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
			continue;
		if (!__atomic_compare_exchange_n(&s->self_claim, &unclaimed, claim, false, __ATOMIC_SEQ_CST,
		                                 __ATOMIC_RELAXED))
			continue;
		/* a restarted daemon may have given the slot away between the load and the claim */
		if (__atomic_load_n(&policy->dir[i].generation, __ATOMIC_SEQ_CST) & 1) {
			__atomic_store_n(&s->self_claim, 0, __ATOMIC_SEQ_CST);
			continue;
		}
		__atomic_store_n(&s->claim_starttime, starttime, __ATOMIC_RELAXED);
		__atomic_store_n(&s->ns_pid, ns_pid, __ATOMIC_RELAXED);
		*ret_slot = i;
		return 0;
	}
	return -ENOSPC;
}
