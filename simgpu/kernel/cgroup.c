/* SPDX-License-Identifier: Apache-2.0 */
/* Cgroups by number: a directory of cgroup2 has the cgroup's id as its inode number, the same in every namespace. */
#include "simgpu/kernel/cgroup.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#define PATH_BYTES 4096

/* "36 25 0:32 /root /mount rw - cgroup2 …": the mount point, and the part of the hierarchy that it shows. */
static int mounted(char root[PATH_BYTES], char mount[PATH_BYTES])
{
	FILE *file = fopen("/proc/self/mountinfo", "re");
	char line[2 * PATH_BYTES];
	int found = 0;

	while (file && !found && fgets(line, sizeof(line), file))
		found = strstr(line, " - cgroup2 ") && sscanf(line, "%*s %*s %*s %4095s %4095s", root, mount) == 2;
	if (file)
		fclose(file);
	return found;
}

static int own_path(char path[PATH_BYTES])
{
	FILE *file = fopen("/proc/self/cgroup", "re");
	char line[PATH_BYTES];
	int found = 0;

	while (file && !found && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = 0;
		found = strncmp(line, "0::/", 4) == 0 && strncmp(line, "0::/..", 6) != 0;
		if (found)
			snprintf(path, PATH_BYTES, "%s", line + 3);
	}
	if (file)
		fclose(file);
	return found;
}

uint64_t sim_cgroup_at(const char *directory)
{
	struct statfs system;
	struct stat info;

	if (stat(directory, &info) != 0 || statfs(directory, &system) != 0)
		return 0;
	if (system.f_type != CGROUP2_SUPER_MAGIC || !S_ISDIR(info.st_mode)) {
		errno = ENOTDIR;
		return 0;
	}
	return info.st_ino;
}

void sim_cgroups(uint64_t ret_cgroup[SIM_CGROUPS])
{
	char root[PATH_BYTES], mount[PATH_BYTES], path[PATH_BYTES], whole[2 * PATH_BYTES];

	memset(ret_cgroup, 0, SIM_CGROUPS * sizeof(*ret_cgroup));
	if (!mounted(root, mount) || !own_path(path))
		return;
	size_t skipped = strcmp(root, "/") == 0 ? 0 : strlen(root);

	if (strncmp(path, root, skipped) != 0)
		return; /* it is not below the mounted part */
	snprintf(whole, sizeof(whole), "%s%s", mount, path + skipped);
	for (unsigned i = 0; i < SIM_CGROUPS && strlen(whole) >= strlen(mount); i++) {
		ret_cgroup[i] = sim_cgroup_at(whole);
		char *slash = strrchr(whole, '/');

		if (!ret_cgroup[i] || !slash)
			break;
		*slash = 0;
	}
}
