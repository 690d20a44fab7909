/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gcc's address sanitizer ends a program before main() when a preloaded library comes before it in the loader's list,
 * since a library that replaces malloc would hide memory from it. Ours replaces no function of libc. The sanitizer
 * requests its default options by this name, and a program's own definition of it comes first.
 */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
	return "verify_asan_link_order=0";
}
