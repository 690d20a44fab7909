#include <stdio.h>
#include <string.h>
#include "interpose/sim/object.h"
#define A SIM_API
typedef struct sim_gpu *dev;
static struct sim_state *st(void)
{
	return sim_state();
}
A int nvmlInit_v2(void)
{
	return st() ? 0 : 9;
}
A int nvmlInitWithFlags(unsigned f)
{
	(void)f;
	return st() ? 0 : 9;
}
A int nvmlShutdown(void)
{
	return 0;
}
A const char *nvmlErrorString(int e)
{
	return e ? "error" : "Success";
}
A int nvmlSystemGetDriverVersion(char *v, unsigned n)
{
	snprintf(v, n, "580.95.05");
	return 0;
}
A int nvmlSystemGetNVMLVersion(char *v, unsigned n)
{
	snprintf(v, n, "13.580.95.05");
	return 0;
}
A int nvmlDeviceGetCount_v2(unsigned *n)
{
	*n = st()->gpu_count;
	return 0;
}
A int nvmlDeviceGetHandleByIndex_v2(unsigned i, dev *d)
{
	if (i >= st()->gpu_count)
		return 2;
	*d = &st()->gpu[i];
	return 0;
}
A int nvmlDeviceGetUUID(dev d, char *t, unsigned n)
{
	const uint8_t *u = d->uuid;
	snprintf(t, n, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2],
	         u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
	return 0;
}
A int nvmlDeviceGetName(dev d, char *t, unsigned n)
{
	snprintf(t, n, "%s", sim_model_at(d->model)->name);
	return 0;
}
struct mem {
	unsigned long long total, free, used;
};
A int nvmlDeviceGetMemoryInfo(dev d, struct mem *m)
{
	sim_lock(d);
	sim_reap(st(), d, true);
	m->used = sim_used_bytes(st(), sim_gpu_index(st(), d));
	sim_unlock(d);
	m->total = sim_model_at(d->model)->memory_bytes;
	m->free = m->total - m->used;
	return 0;
}
struct util {
	unsigned gpu, memory;
};
A int nvmlDeviceGetUtilizationRates(dev d, struct util *u)
{
	sim_lock(d);
	u->gpu = timeline_utilization_permille(sim_advance(st(), d), -1, 1000000000) / 10;
	sim_unlock(d);
	u->memory = 0;
	return 0;
}
struct proc {
	unsigned pid;
	unsigned long long used;
	unsigned gi, ci;
};
A int nvmlDeviceGetComputeRunningProcesses_v3(dev d, unsigned *n, struct proc *p)
{
	unsigned k = 0, g = sim_gpu_index(st(), d);
	sim_lock(d);
	sim_reap(st(), d, true);
	for (unsigned i = 0; i < SIM_CLIENTS; i++)
		if (st()->client[i].in_use && st()->client[i].used_bytes[g]) {
			if (p && k < *n)
				p[k] = (struct proc){ st()->client[i].pid, st()->client[i].used_bytes[g], -1u, -1u };
			k++;
		}
	sim_unlock(d);
	int r = k > *n ? 7 : 0;
	*n = k;
	return r;
}
