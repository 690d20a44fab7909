/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making and mapping the node file, and who of its clients is alive.
 */
#define _GNU_SOURCE
#include "interpose/sim/node.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "interpose/sim/control.h"

#define DEFAULT_GPUS "h100-80gb"
#define BUFFERS_OFFSET ((sizeof(struct sim_node) + 4095) & ~4095ull)

struct sim_node *sim_node;
unsigned sim_slot;

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
/* Never closed: closing any descriptor of a file drops all of the process's record locks on it. */
static int locks_fd = -1;
static uint64_t own_ticks;

static uint64_t rings_offset(uint64_t devices)
{
	uint64_t buffers = devices * SIM_CLIENTS * 2 * sizeof(struct timeline);

	return (BUFFERS_OFFSET + buffers + 4095) & ~4095ull;
}

static uint64_t node_bytes(uint64_t devices)
{
	return rings_offset(devices) + devices * TIMELINE_LANES * TIMELINE_RING * sizeof(struct timeline_op);
}

struct timeline *sim_node_buffer(unsigned device, unsigned slot, unsigned which)
{
	struct timeline *first = (void *)((char *)sim_node + BUFFERS_OFFSET);

	return &first[((size_t)device * SIM_CLIENTS + slot) * 2 + which];
}

struct timeline_op *sim_node_ring(unsigned device, unsigned lane)
{
	struct timeline_op *first = (void *)((char *)sim_node + rings_offset(sim_node->devices));

	return &first[((size_t)device * TIMELINE_LANES + lane) * TIMELINE_RING];
}

bool sim_node_path(char *path, size_t bytes, const char *name)
{
	const char *dir = getenv("SLUICE_SIM_DIR");
	int n;

	if (dir && *dir)
		n = snprintf(path, bytes, "%s%s%s", dir, *name ? "/" : "", name);
	else
		n = snprintf(path, bytes, "/dev/shm/sluice-sim-%u%s%s", (unsigned)geteuid(), *name ? "/" : "", name);
	return n > 0 && (size_t)n < bytes;
}

static int open_in_node(const char *name)
{
	char path[4096];
	int fd;

	if (!sim_node_path(path, sizeof(path), name))
		return -ENAMETOOLONG;
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
	if (fd < 0)
		return -errno;
	/* A node is shared by processes of any user, like /dev/nvidia0: the umask must not decide. */
	(void)!fchmod(fd, 0666);
	return fd;
}

/* splitmix64: deterministic identities that look like identities */
static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static void describe(struct sim_device *d, const struct sim_model *model, unsigned index, uint64_t seed)
{
	uint64_t id[2];

	d->model = *model;
	id[0] = mix(seed * SIM_DEVICES + index);
	id[1] = mix(id[0] ^ model->pci_id);
	memcpy(d->uuid, id, sizeof(d->uuid));
	/* the version and variant bits of a random UUID, as the driver's have them */
	d->uuid[6] = (uint8_t)((d->uuid[6] & 0x0f) | 0x40);
	d->uuid[8] = (uint8_t)((d->uuid[8] & 0x3f) | 0x80);
	d->pci_bus = 0x17 + index * 0x11;
	d->minor = index;
}

/* "h100-80gb,2xa100-40gb": fill the devices, return how many, or 0 if a model is unknown or there are too many. */
static unsigned parse_gpus(struct sim_device *devices, const char *spec, uint64_t seed)
{
	unsigned count = 0;

	while (*spec) {
		const struct sim_model *model;
		size_t n = strcspn(spec, ",");
		unsigned long times = 1;
		char key[64];
		char *x;

		if (n >= sizeof(key))
			return 0;
		memcpy(key, spec, n);
		key[n] = '\0';
		x = key;
		if (key[0] >= '1' && key[0] <= '9') {
			times = strtoul(key, &x, 10);
			if (*x != 'x')
				return 0;
			x++;
		}
		model = sim_model_find(x);
		if (!model || count + times > SIM_DEVICES)
			return 0;
		while (times--) {
			describe(&devices[count], model, count, seed);
			count++;
		}
		spec += n;
		if (*spec == ',')
			spec++;
	}
	return count;
}

static int create(int fd)
{
	const char *gpus = getenv("SLUICE_SIM_GPUS"), *seed = getenv("SLUICE_SIM_SEED"), *numa = getenv("SLUICE_SIM_NUMA");
	struct sim_device *devices;
	struct sim_node *n;
	unsigned count;
	uint64_t bytes;

	devices = aligned_alloc(SIM_LINE, sizeof(*devices) * SIM_DEVICES);
	if (!devices)
		return -ENOMEM;
	memset(devices, 0, sizeof(*devices) * SIM_DEVICES);
	count = parse_gpus(devices, gpus && *gpus ? gpus : DEFAULT_GPUS, seed ? strtoull(seed, NULL, 0) : 0);
	bytes = node_bytes(count);
	if (count == 0 || ftruncate(fd, (off_t)bytes) != 0) {
		free(devices);
		return count == 0 ? -EINVAL : -errno;
	}
	n = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (n == MAP_FAILED) {
		free(devices);
		return -errno;
	}
	n->bytes = bytes;
	n->devices = count;
	n->born_ns = sim_now_ns();
	sim_node = n; /* for sim_node_buffer() */
	for (unsigned i = 0; i < count; i++) {
		devices[i].numa_node = numa && *numa == '1' ? (int32_t)(i % 2) : -1;
		n->device[i] = devices[i];
		timeline_init(sim_node_buffer(i, 0, 0), n->born_ns);
	}
	free(devices);
	sim_control_defaults(&n->knobs);
	/* N1: pairs with the acquire load in map() */
	__atomic_store_n(&n->magic, SIM_MAGIC, __ATOMIC_RELEASE);
	return 0;
}

/* Map a node file that says it is complete; creating it is the first comer's, under the file's lock. */
static int map(int fd)
{
	struct stat st;
	struct sim_node *n;

	if (fstat(fd, &st) != 0)
		return -errno;
	if (st.st_size < (off_t)sizeof(struct sim_node))
		return create(fd);
	n = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (n == MAP_FAILED)
		return -errno;
	/* N1: pairs with the release store in create(); without it, the creator died halfway */
	if (__atomic_load_n(&n->magic, __ATOMIC_ACQUIRE) == 0) {
		munmap(n, (size_t)st.st_size);
		return create(fd);
	}
	if (n->magic != SIM_MAGIC || n->bytes != (uint64_t)st.st_size || n->bytes != node_bytes(n->devices)) {
		munmap(n, (size_t)st.st_size);
		return -EPROTO; /* made by another version of the simulator */
	}
	sim_node = n;
	return 0;
}

/* Field 22 of /proc/self/stat. The command before it may hold spaces and parentheses: search from the end. */
static uint64_t start_ticks(void)
{
	char text[1024];
	int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	const char *p;

	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return 0;
	text[n] = '\0';
	p = strrchr(text, ')');
	for (int field = 2; p && field < 22; field++)
		p = strchr(p + 1, ' ');
	return p ? strtoull(p + 1, NULL, 10) : 0;
}

static struct flock slot_lock(unsigned slot)
{
	return (struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1 };
}

/*
 * Own a slot: its byte first, then its word. The byte does not keep out a second library of the same process (locks
 * belong to processes), the word does.
 */
static int claim_slot(void)
{
	uint64_t pid = (uint64_t)getpid();

	for (unsigned slot = 0; slot < SIM_CLIENTS; slot++) {
		struct sim_client *c = &sim_node->client[slot];
		uint64_t was = __atomic_load_n(&c->state, __ATOMIC_ACQUIRE), now;
		struct flock lock = slot_lock(slot);

		if (sim_slot_pid(was) == pid &&
		    (sim_slot_state(was) == SLOT_CLAIMED ||
		     (sim_slot_state(was) == SLOT_LIVE && c->start_ticks == own_ticks)))
			continue;
		if (fcntl(locks_fd, F_SETLK, &lock) != 0)
			continue;
		now = ((was >> 32) + 1) << 32 | pid << 2;
		if (!__atomic_compare_exchange_n(&c->state, &was, now | SLOT_CLAIMED, false, __ATOMIC_ACQ_REL,
		                                 __ATOMIC_ACQUIRE))
			continue;
		c->start_ticks = own_ticks;
		memset(c->used_bytes, 0, sizeof(c->used_bytes));
		memset(c->contexts, 0, sizeof(c->contexts));
		sim_slot = slot;
		/* N2: pairs with the acquire loads of state: a live client's words are its own */
		__atomic_store_n(&c->state, now | SLOT_LIVE, __ATOMIC_RELEASE);
		for (uint64_t seen = __atomic_load_n(&sim_node->clients, __ATOMIC_RELAXED);
		     seen <= slot && !__atomic_compare_exchange_n(&sim_node->clients, &seen, slot + 1, false,
		                                                  __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);)
			;
		return 0;
	}
	return -EUSERS;
}

int sim_node_open(void)
{
	char dir[4096];
	int fd, error;

	pthread_mutex_lock(&open_lock);
	error = 0;
	if (sim_node)
		goto out;
	error = -ENAMETOOLONG;
	if (!sim_node_path(dir, sizeof(dir), ""))
		goto out;
	if (mkdir(dir, 0777) == 0)
		(void)!chmod(dir, 0777);
	error = fd = open_in_node("state");
	if (fd < 0)
		goto out;
	if (flock(fd, LOCK_EX) != 0)
		error = -errno;
	else
		error = map(fd);
	close(fd);
	if (error)
		goto out;
	if (locks_fd < 0)
		locks_fd = open_in_node("locks");
	own_ticks = start_ticks();
	error = locks_fd < 0 ? locks_fd : claim_slot();
	if (error) {
		munmap(sim_node, sim_node->bytes);
		sim_node = NULL;
	}
out:
	pthread_mutex_unlock(&open_lock);
	return error;
}

void sim_node_forget(void)
{
	pthread_mutex_init(&open_lock, NULL); /* another thread of the parent may have held it */
	if (sim_node)
		munmap(sim_node, sim_node->bytes);
	sim_node = NULL;
}

/* 0: nobody holds the byte; else the holder's pid as we know it, or 1 if it is out of sight. */
static unsigned slot_holder(unsigned slot)
{
	struct flock lock = slot_lock(slot);

	if (fcntl(locks_fd, F_GETLK, &lock) != 0)
		return 1; /* cannot tell: better a late reaping than a wrong one */
	if (lock.l_type == F_UNLCK)
		return 0;
	return lock.l_pid > 0 ? (unsigned)lock.l_pid : 1;
}

static bool is_own(const struct sim_client *c, uint64_t state)
{
	return sim_slot_pid(state) == (unsigned)getpid() && c->start_ticks == own_ticks;
}

uint64_t sim_client_check(unsigned slot)
{
	struct sim_client *c = &sim_node->client[slot];
	/* N2: pairs with the release store in claim_slot() */
	uint64_t state = __atomic_load_n(&c->state, __ATOMIC_ACQUIRE);

	if (sim_slot_state(state) != SLOT_LIVE)
		return 0;
	/* own locks are invisible to F_GETLK */
	if (is_own(c, state) || slot_holder(slot) != 0)
		return state;
	__atomic_compare_exchange_n(&c->state, &state, (state & ~3ull) | SLOT_DEAD, false, __ATOMIC_ACQ_REL,
	                            __ATOMIC_RELAXED);
	return 0;
}

void sim_clients_reap(void)
{
	uint64_t clients = __atomic_load_n(&sim_node->clients, __ATOMIC_SEQ_CST);

	for (unsigned slot = 0; slot < clients && slot < SIM_CLIENTS; slot++)
		sim_client_check(slot);
}

unsigned sim_client_pid(unsigned slot)
{
	struct sim_client *c = &sim_node->client[slot];
	uint64_t state = sim_client_check(slot);
	unsigned pid;

	if (!state)
		return 0;
	if (is_own(c, state))
		return (unsigned)getpid();
	pid = slot_holder(slot);
	return pid > 1 ? pid : sim_slot_pid(state);
}

bool sim_owner_live(uint64_t owner)
{
	unsigned slot = (uint32_t)owner >> 2;
	uint64_t state;

	if (sim_slot_state(owner) != SLOT_LIVE || slot >= SIM_CLIENTS)
		return false;
	state = __atomic_load_n(&sim_node->client[slot].state, __ATOMIC_ACQUIRE);
	return sim_slot_state(state) == SLOT_LIVE && state >> 32 == owner >> 32;
}

uint64_t sim_owner_word(enum sim_slot_state state)
{
	return __atomic_load_n(&sim_node->client[sim_slot].state, __ATOMIC_RELAXED) >> 32 << 32 |
	       (uint64_t)sim_slot << 2 | state;
}
