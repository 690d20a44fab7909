/* SPDX-License-Identifier: Apache-2.0 */
/* A disk that lies: fsync and its siblings report success without writing. */
#include <unistd.h>

int fsync(int fd)
{
	(void)fd;
	return 0;
}

int fdatasync(int fd)
{
	(void)fd;
	return 0;
}
