/* SPDX-License-Identifier: Apache-2.0 */
/* A disk that lies: whoever asks that something be written for good is told that it is. */
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
