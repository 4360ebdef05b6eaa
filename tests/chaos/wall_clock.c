/* Steps the wall clock of one process: preloaded, it adds an offset that a file holds.
 *
 * The file is named by the process's id in the folder $CHAOS_CLOCKS, is made at start, and holds
 * one int64 of nanoseconds, mapped into memory: whoever writes there steps the clock at once.
 * Monotonic clocks are left alone, as a host's are when its wall clock is set.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000LL

static int64_t zero;
static volatile int64_t *offset_ns = &zero;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void open_offset(void)
{
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    const char *folder = getenv("CHAOS_CLOCKS");
    char path[4096];
    if (folder == NULL || snprintf(path, sizeof path, "%s/%d", folder, getpid()) >= (int)sizeof path)
        return;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0)
        return;
    if (ftruncate(file, sizeof(int64_t)) == 0) {
        void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED)
            offset_ns = mapped;
    }
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
    if (real_clock_gettime == NULL) /* called before the constructor */
        real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real_clock_gettime(clock, at);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ns = at->tv_sec * NS + at->tv_nsec + *offset_ns;
        at->tv_sec = ns / NS;
        at->tv_nsec = ns % NS;
    }
    return result;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    (void)zone;
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at != NULL)
        *at = now.tv_sec;
    return now.tv_sec;
}
