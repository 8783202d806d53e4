/* One probe, many acts. A probe prints "started" before it tries anything, so that "blocked" can not mean
   "never ran"; then one line: "ok", "ok DETAIL" or the name of the errno. Verdicts are taken on the host's
   side wherever the act leaves a trace there; this line only says which error the program saw. */
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
    int arguments; /* how many it needs at least */
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
