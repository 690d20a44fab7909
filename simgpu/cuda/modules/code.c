/* SPDX-License-Identifier: Apache-2.0 */
/* One lock for modules, their functions and variables; each of them depends on it. */
#include <pthread.h>

#include "simgpu/cuda/modules/modules.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void sim_module_lock(void)
{
	pthread_mutex_lock(&mutex);
}

void sim_module_unlock(void)
{
	pthread_mutex_unlock(&mutex);
}
