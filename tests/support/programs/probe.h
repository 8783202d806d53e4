/* One probe with many acts. A probe prints "started" before it tries anything, so that "blocked"
   cannot mean "never ran". Then it prints one line: "ok", "ok DETAIL" or the name of the errno.
   If an act leaves a trace on the host, the test checks that trace. This line shows only the
   error that the program got. */
#ifndef PROBE_H
#define PROBE_H

#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct act {
    const char *name;
    int arguments; /* the smallest number of arguments */
    int (*run)(int count, char **argument);
};

extern const struct act file_acts[];
extern const struct act syscall_acts[];
extern const struct act process_acts[];
extern const struct act exec_acts[];

int ok(const char *detail);
int refused(void); /* prints the name of errno */
int print_result(long result);

#endif
