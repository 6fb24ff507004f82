#include "part.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "tools/cli/flags.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/numbers.h"
#include "tools/cli/say.h"

static int failed(const char *path, int error, const char *help)
{
    gr_say_error("%s: %s; %s", path, strerror(error), help);
    return gr_status_exit(GR_E_IO);
}

/* Waits for the lock, so that an interrupt ends the wait. */
static int lock(struct gr_part *p)
{
    while (flock(p->fd, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return failed(p->path, errno, "its file system has no locks; choose another folder");
        if (!p->waited)
            gr_say("download: another process writes %s: waiting for it", p->path);
        p->waited = true;
        if (gr_interrupted())
            return GR_EXIT_INTERRUPTED;
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    return 0;
}

/* Returns whether the locked file is still the one with this name: its former writer may have
 * completed or removed it. */
static bool is_current(const struct gr_part *p, struct stat *own)
{
    struct stat named;
    return !fstat(p->fd, own) && !lstat(p->path, &named) && own->st_dev == named.st_dev &&
           own->st_ino == named.st_ino;
}

int gr_part_open(struct gr_part *p, const char *path)
{
    struct stat st;
    *p = (struct gr_part){.fd = -1};
    if (snprintf(p->path, sizeof p->path, "%s.part", path) >= (int)sizeof p->path)
        return failed(path, ENAMETOOLONG, "choose another folder");
    for (;;) {
        p->fd = open(p->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (p->fd < 0)
            return failed(p->path, errno, "choose another folder by LLAMA_CACHE or HF_HOME");
        int rc = lock(p);
        if (rc) {
            gr_part_close(p);
            return rc;
        }
        if (is_current(p, &st))
            break;
        gr_part_close(p);
    }
    if (!S_ISREG(st.st_mode)) {
        gr_part_close(p);
        return failed(p->path, EEXIST, "it is no file: remove it");
    }
    p->n = (uint64_t)st.st_size;
    return 0;
}

int gr_part_add(struct gr_part *part, const void *p, size_t n)
{
    const char *from = p;
    while (n > 0) {
        ssize_t put = pwrite(part->fd, from, n, (off_t)part->n);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return failed(part->path, put ? errno : EIO,
                          "what came so far stays: once there is room, the same command goes on");
        from += put, n -= (size_t)put, part->n += (uint64_t)put;
    }
    return 0;
}

int gr_part_empty(struct gr_part *p)
{
    p->n = 0;
    return ftruncate(p->fd, 0) ? failed(p->path, errno, "choose another folder") : 0;
}

int gr_part_room(const struct gr_part *p, uint64_t n)
{
    struct statvfs fs;
    char needed[16], there[16];
    if (fstatvfs(p->fd, &fs) || !fs.f_frsize || n / fs.f_frsize < fs.f_bavail)
        return 0;
    gr_say_error("%s: %s are to come and the disk has room for %s; free some, or choose another "
                 "folder by LLAMA_CACHE or HF_HOME",
                 p->path, gr_amount(needed, (double)n, 1024),
                 gr_amount(there, (double)fs.f_bavail * (double)fs.f_frsize, 1024));
    return gr_status_exit(GR_E_IO);
}

/* Makes a new name in a folder last; some file systems do not support it. */
static void sync_folder(const char *path)
{
    char folder[GR_PATH_MAX] = ".";
    const char *slash = strrchr(path, '/');
    if (slash)
        snprintf(folder, sizeof folder, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)fsync(fd);
    close(fd);
}

int gr_part_commit(struct gr_part *p, const char *path)
{
    if (fsync(p->fd) || rename(p->path, path))
        return failed(path, errno, "what came so far stays in the .part beside it");
    sync_folder(path);
    return 0;
}

void gr_part_remove(struct gr_part *p)
{
    if (p->fd >= 0)
        unlink(p->path);
    gr_part_close(p);
}

void gr_part_close(struct gr_part *p)
{
    if (p->fd >= 0)
        close(p->fd);
    p->fd = -1;
}
