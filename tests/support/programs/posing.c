/* The forbidden program in a form that can be started as a loader. The kernel starts a loader
   without any set-up, so this program has no C library. It adds a line to the file `ran`, like
   mark.c. */
#include <fcntl.h>
#include <sys/syscall.h>

#ifdef __x86_64__
__asm__(".globl _start\n_start: and $-16, %rsp\n call poses\n");
static long call(long number, long a, long b, long c, long d)
{
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall"
                     : "+a"(number)
                     : "D"(a), "S"(b), "d"(c), "r"(fourth)
                     : "rcx", "r11", "memory");
    return number;
}
#else
__asm__(".globl _start\n_start: bl poses\n");
static long call(long number, long a, long b, long c, long d)
{
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c, x3 __asm__("x3") = d;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
}
#endif

void poses(void)
{
    static const char line[] = "forbidden\n";
    long fd = call(SYS_openat, AT_FDCWD, (long)"ran", O_WRONLY | O_CREAT | O_APPEND, 0644);
    call(SYS_write, fd, (long)line, sizeof line - 1, 0);
    call(SYS_exit_group, 0, 0, 0, 0);
}
