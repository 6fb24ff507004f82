#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/mapped.h"
#include "gr/status.h"

static int64_t mtime_of(const struct stat *st)
{
    return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

/* With huge pages a fault reads 2 MiB or more (512 MiB where pages are 64 KiB), which pays only for
 * a file that stays in memory. */
static bool fits_in_memory(uint64_t bytes)
{
    long page = sysconf(_SC_PAGESIZE), n = sysconf(_SC_PHYS_PAGES);
    return page == 4096 && n > 0 && bytes / 4096 < (uint64_t)n;
}

/* Maps the file; f->map stays NULL when mmap is refused. */
static void map_file(struct gr_file *f)
{
    void *p = mmap(NULL, f->size, PROT_READ, MAP_PRIVATE, f->fd, 0);
    if (p == MAP_FAILED)
        return;
    if (!gr_mapped_add(p, f->size)) {
        munmap(p, f->size);
        return;
    }
    f->map = p;
    if (fits_in_memory(f->size))
        gr_alloc_huge(f->map, f->size);
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
    if (mapped && f->size)
        map_file(f);
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
    if (f->map) {
        gr_mapped_remove(f->map);
        munmap((void *)(uintptr_t)f->map, f->size);
    }
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
