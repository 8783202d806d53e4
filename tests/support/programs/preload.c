/* A library for LD_PRELOAD. It prints the program that loaded it. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>

__attribute__((constructor)) static void arrive(void)
{
    dprintf(2, "preloaded into %s\n", program_invocation_short_name);
}
