#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "gr/status.h"

static int64_t mtime_of(const struct stat *st)
{
    return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

/* With large pages a miss reads 2 MiB and more (and 512 MiB where pages are 64 KiB), which is right
 * for what stays in memory only. */
static bool fits_in_memory(uint64_t bytes)
{
    long page = sysconf(_SC_PAGESIZE), n = sysconf(_SC_PHYS_PAGES);
    return page == 4096 && n > 0 && bytes / 4096 < (uint64_t)n;
}

int gr_file_open(struct gr_file *f, const char *path, bool mapped)
{
    struct stat st;
    /* O_NONBLOCK: opening a pipe does not wait for a writer. */
    *f = (struct gr_file){.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (f->fd < 0) {
        int code = errno == ENOENT || errno == ENOTDIR ? GR_E_NO_MODEL : GR_E_IO;
        return gr_fail(code, "%s: %s", path, strerror(errno));
    }
    int rc = 0;
    if (fstat(f->fd, &st) != 0)
        rc = gr_fail(GR_E_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        rc = gr_fail(GR_E_IO, "%s: not a regular file", path);
    else if (!(f->path = gr_strndup(path, strlen(path))))
        rc = GR_E_NOMEM_HOST;
    if (rc) {
        gr_file_close(f);
        return rc;
    }
    f->size = (uint64_t)st.st_size;
    f->inode = st.st_ino;
    f->mtime_ns = mtime_of(&st);
    if (mapped && f->size) {
        void *p = mmap(NULL, f->size, PROT_READ, MAP_PRIVATE, f->fd, 0);
        f->map = p == MAP_FAILED ? NULL : p;
        if (fits_in_memory(f->size))
            gr_alloc_huge(f->map, f->size);
    }
    return 0;
}

int gr_file_read(const struct gr_file *f, uint64_t off, void *dst, size_t n)
{
    size_t done = 0;
    int err = 0;
    while (done < n && !err) {
        ssize_t k = pread(f->fd, (char *)dst + done, n - done, (off_t)(off + done));
        if (k > 0)
            done += (size_t)k;
        else if (k == 0 || errno != EINTR)
            err = k == 0 ? -1 : errno;
    }
    if (!err)
        return 0;
    memset(dst, 0, n);
    return gr_fail(GR_E_IO, "%s: %zu bytes at offset %llu: %s", f->path, n, (unsigned long long)off,
                   err < 0 ? "the file ends before them" : strerror(err));
}

int gr_file_unchanged(const struct gr_file *f)
{
    struct stat st;
    if (fstat(f->fd, &st) != 0)
        return gr_fail(GR_E_IO, "%s: %s", f->path, strerror(errno));
    if ((uint64_t)st.st_size != f->size || mtime_of(&st) != f->mtime_ns || st.st_ino != f->inode)
        return gr_fail(GR_E_CORRUPT, "%s: the file was changed while it was being read", f->path);
    return 0;
}

void gr_file_close(struct gr_file *f)
{
    if (f->map)
        munmap((void *)(uintptr_t)f->map, f->size);
    if (f->path || f->fd > 0)
        close(f->fd);
    gr_free(f->path);
    *f = (struct gr_file){.fd = -1};
}

int gr_file_slurp(const char *path, size_t limit, char **data, size_t *n)
{
    bool standard = strcmp(path, "-") == 0;
    int fd = standard ? 0 : open(path, O_RDONLY | O_CLOEXEC);
    struct gr_vec v = {0};
    char chunk[8192];
    int rc = 0;
    ssize_t k = 0;
    if (fd < 0)
        return gr_fail(GR_E_IO, "%s: %s", path, strerror(errno));
    while (!rc && ((k = read(fd, chunk, sizeof chunk)) > 0 || (k < 0 && errno == EINTR))) {
        if (k > 0 && v.n + (size_t)k > limit)
            rc = gr_fail(GR_E_TOO_LARGE, "%s: more than %zu bytes", path, limit);
        else if (k > 0)
            rc = gr_vec_append(&v, chunk, (size_t)k, 1);
    }
    if (!rc && k < 0)
        rc = gr_fail(GR_E_IO, "%s: %s", path, strerror(errno));
    if (!rc)
        rc = gr_vec_append(&v, "", 1, 1);
    if (!standard)
        close(fd);
    if (rc) {
        gr_vec_fini(&v);
        return rc;
    }
    *data = v.data, *n = v.n - 1;
    return 0;
}

int gr_file_absent(const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return 0;
    return gr_fail(GR_E_INVALID, "%s exists; choose another name, or --overwrite", path);
}

#define TEMP_TAIL 24 /* of the temporary name: ".tmp-" and eight digits */

static char *directory_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? gr_strndup(path, slash == path ? 1 : (size_t)(slash - path))
                 : gr_strndup(".", 1);
}

static void invent_name(struct gr_replace *r)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(r->temp, strlen(r->path) + TEMP_TAIL, "%s.tmp-%08x", r->path,
             (unsigned)getpid() * 2654435761u ^ (unsigned)now.tv_nsec);
}

/* A file that has no name until it is complete, so that nothing is left of it when its writer is
 * killed; -1 where the file system or the lack of /proc does not allow it. */
static int create_unnamed(const char *path, mode_t mode)
{
    char *dir = directory_of(path), self[32];
    int fd = dir ? open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, mode) : -1;
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    if (fd >= 0 && access(self, F_OK) != 0) {
        close(fd);
        fd = -1;
    }
    gr_free(dir);
    return fd;
}

/* One beside the final name. mkstemp would keep every file from other users. */
static int create_beside(struct gr_replace *r, mode_t mode)
{
    int fd = -1;
    errno = EEXIST;
    for (int k = 0; k < 100 && fd < 0 && errno == EEXIST; k++) {
        invent_name(r);
        fd = open(r->temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    }
    r->named = fd >= 0;
    return fd;
}

/* Gives the unnamed file a name beside the final one, which linking cannot replace. */
static bool name_it(struct gr_replace *r)
{
    char self[32];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fileno(r->out));
    errno = EEXIST;
    for (int k = 0; k < 100 && !r->named && errno == EEXIST; k++) {
        invent_name(r);
        r->named = linkat(AT_FDCWD, self, AT_FDCWD, r->temp, AT_SYMLINK_FOLLOW) == 0;
    }
    return r->named;
}

int gr_replace_open(struct gr_replace *r, const char *path, mode_t mode)
{
    *r = (struct gr_replace){0};
    size_t n = strlen(path);
    r->path = gr_strndup(path, n);
    r->temp = gr_calloc(n + TEMP_TAIL, 1);
    if (!r->path || !r->temp) {
        gr_replace_abort(r);
        return GR_E_NOMEM_HOST;
    }
    int fd = create_unnamed(path, mode);
    fd = fd >= 0 ? fd : create_beside(r, mode);
    r->out = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (r->out)
        return 0;
    int err = errno;
    if (fd >= 0)
        close(fd);
    gr_replace_abort(r);
    return gr_fail(GR_E_IO, "%s: %s", path, strerror(err));
}

static int sync_directory(const char *path)
{
    char *dir = directory_of(path);
    int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    int rc = fd >= 0 ? fsync(fd) : -1;
    if (fd >= 0)
        close(fd);
    gr_free(dir);
    return rc;
}

int gr_replace_commit(struct gr_replace *r)
{
    bool ok = !ferror(r->out) && fflush(r->out) == 0 && fsync(fileno(r->out)) == 0 && name_it(r);
    int err = errno;
    if (fclose(r->out) != 0 && ok)
        ok = false, err = errno;
    r->out = NULL;
    if (ok && rename(r->temp, r->path) != 0)
        ok = false, err = errno;
    int rc = 0;
    if (!ok) {
        rc = gr_fail(GR_E_IO, "%s: %s", r->path, strerror(err));
    } else {
        (void)sync_directory(r->path); /* some file systems cannot; the data itself is safe */
        r->named = false;
    }
    gr_replace_abort(r);
    return rc;
}

void gr_replace_abort(struct gr_replace *r)
{
    if (r->out)
        fclose(r->out);
    if (r->named)
        unlink(r->temp);
    gr_free(r->temp);
    gr_free(r->path);
    *r = (struct gr_replace){0};
}
