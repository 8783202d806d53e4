/* Spellings of paths, and the memory that they lie in. */
#include "file_calls.h"
#include <sys/mman.h>

/* Few names, so that calls meet each other. */
static const char *const names[] = {"a", "a", "b", "b", "c", "d", "l", "m", "e\xff\xfe"};

/* Four pages to read and write, then a page that holds text which can not be read. */
enum { READABLE_PAGES = 4, READABLE = READABLE_PAGES * PAGE };
static char *arenas[ARENAS];
static const char hidden_text[] = "a";

void make_arenas(void)
{
    for (int i = 0; i < ARENAS; i++) {
        arenas[i] = mmap(NULL, READABLE + PAGE, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (arenas[i] == MAP_FAILED)
            abort();
        memcpy(arenas[i] + READABLE, hidden_text, sizeof hidden_text);
        mprotect(arenas[i] + READABLE, PAGE, PROT_NONE);
    }
}

const void *unreadable_address(struct random *random)
{
    const void *addresses[] = {NULL, (void *)8, arenas[0] + READABLE, arenas[1] + READABLE,
                               (void *)0x7fffffffe000, (void *)0xffff888000000000};
    return PICK(random, addresses);
}

/* Text of a body: names joined by slashes, with detours that lead nowhere else. */
static void make_body(struct random *random, char *body)
{
    static const char *const separators[] = {"/", "/", "/", "/", "//", "/./", "/../b/"};
    int parts = 1 + (chance(random, 40) ? 1 + below(random, 2) : 0);
    *body = 0;
    if (chance(random, 6))
        strcat(body, PICK(random, ((const char *[]){"./", ".//", "a/../", "l/../", "../w/"})));
    for (int i = 0; i < parts; i++) {
        if (i > 0)
            strcat(body, PICK(random, separators));
        size_t end = strlen(body);
        if (chance(random, 2)) {
            size_t length = chance(random, 50) ? 255 : 256;
            memset(body + end, 'n', length);
            body[end + length] = 0;
        } else
            strcat(body, PICK(random, names));
    }
    if (chance(random, 12))
        strcat(body, PICK(random, ((const char *[]){"/", "/", "/", "//", "/.", "/..", "/./"})));
}

static int slot_number(struct random *random)
{
    int fd = slots[below(random, SLOTS)];
    return fd < 0 ? CLOSED_FD : fd;
}

/* Where the path begins. "shown" is the same without names that differ between machines. True if
   the prefix has the number of this process. */
static bool make_prefix(struct random *random, char *prefix, char *shown)
{
    *prefix = *shown = 0;
    switch (below(random, 40)) {
    case 0: case 1: case 2: case 3:
        snprintf(prefix, PATH_ROOM, "%s/", root);
        strcpy(shown, "ROOT/");
        return false;
    case 4:
        snprintf(prefix, PATH_ROOM, "/proc/self/root%s/", root);
        strcpy(shown, "/proc/self/rootROOT/");
        return false;
    case 5:
        snprintf(prefix, PATH_ROOM, "//.%s/./", root);
        strcpy(shown, "//.ROOT/./");
        return false;
    case 6: strcpy(prefix, "/proc/self/cwd/"); break;
    case 7: strcpy(prefix, "/proc/thread-self/cwd/"); break;
    case 8: sprintf(prefix, "/proc/self/fd/%d/", slot_number(random)); break;
    case 9: sprintf(prefix, "/dev/fd/%d/", slot_number(random)); break;
    case 10:
        sprintf(prefix, "/proc/%d/cwd/", (int)getpid());
        strcpy(shown, "/proc/PID/cwd/");
        return true;
    default: return false;
    }
    strcpy(shown, prefix);
    return false;
}

static void show(char *shown, size_t room, const char *bytes, size_t length)
{
    size_t used = strlen(shown);
    for (size_t i = 0; i < length && used + 12 < room; i++) {
        if (length > 100 && i == 40) {
            used += (size_t)sprintf(shown + used, "...");
            i = length - 20;
        }
        unsigned char c = (unsigned char)bytes[i];
        used += (size_t)sprintf(shown + used, c >= ' ' && c < 127 ? "%c" : "\\x%02x", c);
    }
}

/* Puts the bytes where the kernel may meet the end of a page, and says where. */
static void place(struct random *random, enum arena arena, struct path *path, const char *bytes)
{
    char *memory = arenas[arena];
    size_t length = strlen(bytes);
    path->length = length;
    switch (below(random, 24)) {
    case 0: case 1: /* NUL is the last byte that can be read */
        memory += READABLE - length - 1;
        strcat(path->shown, "@end");
        break;
    case 2: /* NUL would be the first byte that can not be read */
        memory += READABLE - length;
        memcpy(memory, bytes, length);
        path->address = memory;
        path->length = 0;
        strcat(path->shown, "@cut");
        return;
    case 3: case 4: /* half of it in the next page */
        memory += 2 * PAGE - length / 2;
        strcat(path->shown, "@pages");
        break;
    default:
        break;
    }
    memcpy(memory, bytes, length + 1);
    path->address = memory;
}

void put_path(enum arena arena, struct path *path, const char *bytes)
{
    path->length = strlen(bytes);
    path->names_pid = path->names_fd = false;
    memcpy(arenas[arena], bytes, path->length + 1);
    path->address = arenas[arena];
    strcpy(path->shown, "\"");
    show(path->shown, sizeof path->shown - 12, bytes, path->length);
    strcat(path->shown, "\"");
}

static bool make_plain(struct random *random, char *bytes, char *shown)
{
    char body[PATH_ROOM];
    bool names_pid = make_prefix(random, bytes, shown);
    make_body(random, body);
    strcat(bytes, body);
    show(shown, 300, body, strlen(body));
    return names_pid;
}

static bool make_padded(struct random *random, char *bytes, char *shown)
{
    size_t wanted = 4094 + below(random, 4);
    char body[PATH_ROOM];
    bool names_pid = make_prefix(random, bytes, shown);
    make_body(random, body);
    size_t length = strlen(bytes), rest = strlen(body), pad = wanted - length - rest;
    while (pad > 1) {
        strcpy(bytes + length, "./");
        length += 2;
        pad -= 2;
    }
    if (pad)
        strcpy(bytes + length, "/");
    strcat(bytes, body);
    sprintf(shown + strlen(shown), "./{%zu bytes}", strlen(bytes));
    show(shown, 300, body, strlen(body));
    return names_pid;
}

void make_fd_path(struct random *random, enum arena arena, struct path *path)
{
    char bytes[64];
    sprintf(bytes, PICK(random, ((const char *[]){"/proc/self/fd/%d", "/proc/self/fd/%d",
                                                  "/dev/fd/%d", "/proc/thread-self/fd/%d"})),
            slot_number(random));
    put_path(arena, path, bytes);
    path->names_fd = true;
}

void make_path(struct random *random, enum arena arena, struct path *path)
{
    static char bytes[2 * PATH_ROOM];
    char shown[350] = "";
    *bytes = 0;
    path->names_pid = path->names_fd = false;
    switch (below(random, 50)) {
    case 0:
        path->address = unreadable_address(random);
        path->length = 0;
        strcpy(path->shown, path->address ? "UNREADABLE" : "NULL");
        return;
    case 1:
        break;
    case 2:
        strcpy(bytes, PICK(random, ((const char *[]){".", "..", "./", "../w"})));
        break;
    case 3:
        /* Chains of links, and what is behind them. The kernel follows 40. A chain of exactly
         * 40 is left out: without Paddock one was seen to fail. */
        sprintf(bytes, PICK(random, ((const char *[]){"k/%d", "k/%d", "k/%d/", "k/d%d/a"})),
                PICK(random, ((const int[]){19, 20, 41})));
        break;
    case 4: case 5:
        make_fd_path(random, arena, path);
        return;
    case 6:
        path->names_pid = make_padded(random, bytes, shown);
        break;
    case 7:
        if (with(FEATURE_SYSTEM_PATH)) {
            strcpy(bytes, PICK(random, ((const char *[]){
                "/", "//", "/.", "/..", "/dev/null", "/dev/null/", "/dev/null/x", "/proc/self",
                "/proc/self/no-name", "/proc/version", "/no-name/x"})));
            break;
        }
        /* fall through */
    default:
        path->names_pid = make_plain(random, bytes, shown);
        break;
    }
    if (!*shown)
        show(shown, 300, bytes, strlen(bytes));
    snprintf(path->shown, sizeof path->shown, "\"%s\"", shown);
    place(random, arena, path, bytes);
}

static int filled_slot(struct random *random)
{
    unsigned first = below(random, FREE_SLOTS);
    for (unsigned i = 0; i < FREE_SLOTS; i++)
        if (slots[(first + i) % FREE_SLOTS] >= 0)
            return slots[(first + i) % FREE_SLOTS];
    return slots[SLOT_ROOT];
}

void make_base(struct random *random, struct base *base)
{
    static const int wrong[] = {-1, CLOSED_FD, -99, 0x7fffffff};
    int fd;
    switch (below(random, 20)) {
    case 0: fd = slots[SLOT_GONE]; break;
    case 1: fd = slots[SLOT_FILE]; break;
    case 2: fd = slots[SLOT_PROC]; break;
    case 3: fd = PICK(random, wrong); break;
    case 4: case 5: case 6: case 7: case 8: fd = filled_slot(random); break;
    case 9: case 10: case 11: fd = slots[SLOT_ROOT]; break;
    default: fd = AT_FDCWD; break;
    }
    base->fd = fd;
    int used = fd == AT_FDCWD ? sprintf(base->shown, "CWD") : sprintf(base->shown, "%d", fd);
    switch (below(random, 10)) {
    case 0:
        base->fd = (long)(0xdeadbeef00000000ul | (uint32_t)fd);
        strcpy(base->shown + used, "+high");
        break;
    case 1: /* AT_FDCWD without its sign, as some programs pass it */
        base->fd = (long)(uint32_t)fd;
        strcpy(base->shown + used, "+low");
        break;
    }
}
