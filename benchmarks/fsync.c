/* What a power cut would leave: every sync of the process that loads this (LD_PRELOAD) is written down.
 *
 * FSYNC_RECORD names the record, one line a sync that is done: inode, bytes of the file that it covers, begin and end
 * in ns of CLOCK_MONOTONIC, path. Lines outlive a SIGKILL: they are in the page cache, as the file itself is.
 * <record>.delay, when it is there, holds how many ms a sync takes longer: a slow disk. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static long long now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void be_slow(const char *record) {
    char path[4096], text[32] = "";
    snprintf(path, sizeof path, "%s.delay", record);
    int delay = open(path, O_RDONLY | O_CLOEXEC);
    if (delay < 0)
        return;
    ssize_t got = read(delay, text, sizeof text - 1);
    close(delay);
    long ms = got > 0 ? atol(text) : 0;
    struct timespec rest = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&rest, &rest) != 0)
        ;
}

static int synced(const char *name, int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    const char *record = getenv("FSYNC_RECORD");
    struct stat file;
    if (!record || fstat(fd, &file) != 0)
        return real(fd);
    long long begin = now_ns(); /* what is written from here on, this sync need not cover */
    be_slow(record);
    int failed = real(fd);
    if (failed)
        return failed;
    char link[64], path[2048] = "", line[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) < 0)
        abort();
    int length = snprintf(line, sizeof line, "%llu %lld %lld %lld %s\n", (unsigned long long)file.st_ino,
                          (long long)file.st_size, begin, now_ns(), path);
    int to = open(record, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (to < 0 || write(to, line, length) != length)
        abort();
    close(to);
    return 0;
}

int fsync(int fd) { return synced("fsync", fd); }
int fdatasync(int fd) { return synced("fdatasync", fd); }
