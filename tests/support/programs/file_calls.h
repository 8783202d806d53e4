/* Random system calls on files, and what each of them answers.

   file_calls DIRECTORY STEPS SEED [COUNT] [--without FEATURE]... [--patience SECONDS]

   One seed is one sequence of calls. The program runs it in a tree of its own below DIRECTORY,
   prints one line for each call, then the tree, and removes the tree. The same seed prints the same
   bytes on the same kind of file system. So a sandbox that does calls for a command can be compared
   with a run without it. A feature that a sandbox refuses on purpose is left out with --without.

   Everything that a step does follows from the seed and from its number: no state of the generator
   crosses from one step to the next, so steps can run in a child process or in a thread. */
#ifndef FILE_CALLS_H
#define FILE_CALLS_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* The path, its length and NUL may be longer than the kernel takes. */
enum { PATH_ROOM = 4200, ROOT_ROOM = 1000, PAGE = 4096 };

struct random { uint64_t state; };
uint32_t below(struct random *random, uint32_t limit);
bool chance(struct random *random, unsigned percent);
#define PICK(random, array) ((array)[below(random, COUNT(array))])

/* Features that --without turns off. */
enum feature {
    FEATURE_CHAR_DEVICE,   /* mknod of a character device 0:0, which needs no capability */
    FEATURE_WHITEOUT,      /* renameat2 with RENAME_WHITEOUT makes such a device */
    FEATURE_SOCKET,        /* bind of a unix socket, mknod of a socket */
    FEATURE_ACL,           /* default ACLs: they replace the umask */
    FEATURE_SYSTEM_PATH,   /* paths outside of the tree: / and /dev/null */
    FEATURE_NO_XDEV,       /* openat2 with RESOLVE_NO_XDEV from the root directory */
    FEATURE_SIGNALS,       /* a timer interrupts the calls of some seeds, with SA_RESTART */
    FEATURE_FIFO_WAIT,     /* opens of FIFOs that wait for the other end */
    FEATURE_ODD_THREAD,    /* threads with a working directory or descriptors of their own */
    FEATURE_DEAD_LEADER,   /* calls of a thread whose process has lost its first thread */
    FEATURE_UNDUMPABLE,    /* calls of a process that no other process may inspect */
    FEATURE_XATTRAT,       /* setxattrat and removexattrat of Linux 6.13 */
    FEATURE_EMPTY_LINK,    /* linkat with AT_EMPTY_PATH, allowed to the opener since Linux 6.10 */
    FEATURE_SHUT_DIRECTORY, /* directories that their owner can not list or search */
    FEATURE_SHUT_SOCKET,    /* sockets that their owner can not write */
    FEATURE_PROC_NAME,      /* unlink, rmdir and rename of names in /proc */
    FEATURE_PATH_HOW,       /* openat2 with O_PATH */
    FEATURE_UNDUMPABLE_LINK, /* owner and times of the links in /proc of an undumpable process */
    FEATURES
};
extern const char *const feature_names[FEATURES];
bool with(enum feature feature);
extern bool undumpable; /* this process is */

/* Output. A line is written at its end, so the last line before a hang is known. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void say_bytes(const char *bytes, size_t length);
void say_result(long result); /* the number, or the name of errno */
void end_line(void);
const char *errno_name(int number);

/* Open descriptors that later steps use. -1 is an empty slot. */
enum {
    SLOT_ROOT = 6, /* the top of the tree */
    SLOT_GONE,     /* a directory that was removed */
    SLOT_FILE,     /* a regular file */
    SLOT_PROC,     /* /proc/self of the first process */
    SLOTS
};
extern int slots[SLOTS];
#define FREE_SLOTS SLOT_ROOT
enum { CLOSED_FD = 900 };

extern char root[ROOT_ROOM]; /* absolute path of the tree */
extern dev_t root_device;
bool inside_tree(const char *absolute);

/* One path argument: where it lies in memory, and how it is printed. */
struct path {
    const char *address;
    size_t length;  /* 0 for an address that can not be read */
    bool names_fd;  /* it is a name in /proc, of a descriptor */
    bool names_pid; /* its bytes differ from run to run */
    char shown[400];
};
enum arena { FIRST_PATH, SECOND_PATH, ARENAS };
void make_arenas(void);
void make_path(struct random *random, enum arena arena, struct path *path);
void put_path(enum arena arena, struct path *path, const char *bytes);
/* A path that names the descriptor of a slot. */
void make_fd_path(struct random *random, enum arena arena, struct path *path);
const void *unreadable_address(struct random *random);

/* A descriptor argument. The kernel reads the lower half: sometimes the upper half has rubbish. */
struct base {
    long fd;
    char shown[40];
};
void make_base(struct random *random, struct base *base);

/* Calls. */
void do_call(struct random *random, unsigned step);
void do_fifo_rendezvous(void);
void do_interrupted_open(void);
void restart_timer(void);

/* The tree below the current directory, sorted; then its removal. */
void print_tree(void);
void remove_tree(void);

#endif
