// For LD_PRELOAD: writes to files below a folder whose path has "/slow" in it take SLOW_MS milliseconds each.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static void wait_if_slow(int fd) {
  char link[64], path[512];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return;
  path[length] = 0;
  const char *ms = getenv("SLOW_MS");
  if (strstr(path, "/slow")) usleep(1000 * (ms ? atoi(ms) : 1000));
}

ssize_t write(int fd, const void *bytes, size_t count) {
  static ssize_t (*real)(int, const void *, size_t);
  if (!real) real = dlsym(RTLD_NEXT, "write");
  wait_if_slow(fd);
  return real(fd, bytes, count);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
  static ssize_t (*real)(int, const struct iovec *, int);
  if (!real) real = dlsym(RTLD_NEXT, "writev");
  wait_if_slow(fd);
  return real(fd, parts, count);
}
