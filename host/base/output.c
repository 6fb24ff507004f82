#include "base/output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "gr/status.h"

#define TEMP_TAIL 13 /* bytes of the temporary name's end: ".tmp-" and eight digits */

/* ---- checking a path ---- */

static char *directory_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? gr_strndup(path, slash == path ? 1 : (size_t)(slash - path))
                 : gr_strndup(".", 1);
}

/* Resolves a symbolic link once: `link` with its last component replaced by its target to [n]. */
static char *join(const char *link, const char *to, size_t n)
{
    const char *slash = strrchr(link, '/');
    size_t dir = *to == '/' || !slash ? 0 : (size_t)(slash - link) + 1;
    char *path = gr_calloc(dir + n + 1, 1);
    if (path) {
        memcpy(path, link, dir);
        memcpy(path + dir, to, n);
    }
    return path;
}

/* Follows symbolic links to the final name, which need not exist; NULL: no memory. Loops were
 * refused before, by stat. */
static char *follow(const char *path)
{
    char to[PATH_MAX], *at = gr_strndup(path, strlen(path));
    ssize_t n;
    while (at && (n = readlink(at, to, sizeof to - 1)) > 0) {
        char *link = at;
        to[n] = 0;
        at = join(link, to, (size_t)n);
        gr_free(link);
    }
    return at;
}

/* Returns the descriptor, of stdout or stderr, that refers to this file; -1: neither does. */
static int standard_output(const struct stat *st)
{
    struct stat own;
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (!fstat(fd, &own) && own.st_dev == st->st_dev && own.st_ino == st->st_ino)
            return fd;
    return -1;
}

static const char *kind_of(mode_t mode)
{
    return S_ISFIFO(mode) ? "a FIFO" : S_ISREG(mode) ? "what stdout or stderr goes to" : "a device";
}

static int check_folder(const char *path, const char *of)
{
    struct stat st;
    if (stat(path, &st) != 0 && errno == ENOENT)
        return gr_fail(GR_E_IO, "%s: there is no folder %s; make it, or choose another name", of,
                       path);
    if (faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) != 0)
        return gr_fail(GR_E_IO, "%s: the folder %s cannot be written: %s; choose another one", of,
                       path, strerror(errno));
    return 0;
}

static int check_new(const char *path)
{
    char *name = follow(path), *dir = name ? directory_of(name) : NULL;
    int rc = dir ? check_folder(dir, path) : GR_E_NOMEM_HOST;
    gr_free(dir);
    gr_free(name);
    return rc;
}

/* Checks that `path` can be written. *st receives its state, st_mode 0 when it does not exist;
 * *direct: an existing file or device is written in place, not replaced. */
static int look(const char *path, unsigned flags, struct stat *st, bool *direct)
{
    if (stat(path, st) != 0) {
        if (!*path || errno != ENOENT)
            return gr_fail(GR_E_IO, "'%s': %s; choose another name", path, strerror(errno));
        *st = (struct stat){0};
    }
    mode_t mode = st->st_mode;
    bool file = S_ISREG(mode) && standard_output(st) < 0;
    if (S_ISDIR(mode) || S_ISSOCK(mode))
        return gr_fail(GR_E_INVALID, "%s is a %s; choose the name of a file", path,
                       S_ISDIR(mode) ? "folder" : "socket");
    if (mode && !file && flags & GR_OUTPUT_SEEKS)
        return gr_fail(GR_E_INVALID,
                       "%s is %s, and this is not written from front to back; choose the name of "
                       "a file",
                       path, kind_of(mode));
    if ((file || S_ISBLK(mode)) && flags & GR_OUTPUT_KEEP)
        return gr_fail(GR_E_INVALID, "%s exists; choose another name, or --overwrite", path);
    *direct = mode && (!file || flags & GR_OUTPUT_LIVE);
    if (!*direct)
        return check_new(path);
    if (faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) == 0)
        return 0;
    return gr_fail(GR_E_IO, "%s: %s; choose another name", path, strerror(errno));
}

int gr_output_check(const char *path, unsigned flags)
{
    struct stat st;
    bool direct;
    return look(path, flags, &st, &direct);
}

int gr_output_folder(const char *path)
{
    char *name = follow(path);
    struct stat st;
    int rc = name ? 0 : GR_E_NOMEM_HOST;
    if (!rc && mkdir(name, 0777) != 0 && errno != EEXIST)
        rc = gr_fail(GR_E_IO, "cannot make the folder '%s': %s; choose another name", path,
                     strerror(errno));
    if (!rc && (stat(name, &st) != 0 || !S_ISDIR(st.st_mode)))
        rc = gr_fail(GR_E_IO, "'%s' is no folder; choose another name", path);
    if (!rc)
        rc = check_folder(name, path);
    gr_free(name);
    return rc;
}

/* ---- temporary files ---- */

/* Sets o->temp to the final name, shortened where necessary, with a random suffix. */
static void invent_name(struct gr_output *o)
{
    const char *slash = strrchr(o->path, '/');
    size_t n = strlen(o->path), head = slash ? (size_t)(slash - o->path) + 1 : 0;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    n = n - head > NAME_MAX - TEMP_TAIL ? head + NAME_MAX - TEMP_TAIL : n;
    snprintf(o->temp, n + TEMP_TAIL + 1, "%.*s.tmp-%08x", (int)n, o->path,
             (unsigned)getpid() * 2654435761u ^ (unsigned)now.tv_nsec);
}

/* Creates a file without a name (O_TMPFILE), of which nothing is left when its writer is killed; -1
 * where the file system does not support it or there is no /proc. */
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

/* Creates a temporary file in the folder of the final name. mkstemp is not used because its mode
 * shuts out other users. */
static int create_beside(struct gr_output *o, mode_t mode)
{
    int fd = -1;
    errno = EEXIST;
    for (int k = 0; k < 100 && fd < 0 && errno == EEXIST; k++) {
        invent_name(o);
        fd = open(o->temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    }
    o->named = fd >= 0;
    return fd;
}

/* Links the unnamed file to a temporary name: rename can replace a file, linkat cannot. */
static bool name_it(struct gr_output *o)
{
    char self[32];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fileno(o->out));
    errno = EEXIST;
    for (int k = 0; k < 100 && !o->named && errno == EEXIST; k++) {
        invent_name(o);
        o->named = linkat(AT_FDCWD, self, AT_FDCWD, o->temp, AT_SYMLINK_FOLLOW) == 0;
    }
    return o->named;
}

/* ---- opening ---- */

/* Opens an existing file or device in place, or a live file. */
static int open_direct(struct gr_output *o, const struct stat *st, mode_t mode)
{
    int standard = S_ISREG(st->st_mode) ? standard_output(st) : -1;
    if (standard >= 0)
        return fcntl(standard, F_DUPFD_CLOEXEC, 0);
    return open(o->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, mode);
}

static int open_temp(struct gr_output *o, mode_t mode)
{
    int fd = create_unnamed(o->path, mode);
    return fd >= 0 ? fd : create_beside(o, mode);
}

/* Sets the names. What exists and is written in place keeps the given name: links under /proc may
 * lead to objects without a name of their own. */
static int set_names(struct gr_output *o, const char *path, bool there, bool direct)
{
    o->path = there && direct ? gr_strndup(path, strlen(path)) : follow(path);
    if (o->path && !direct)
        o->temp = gr_calloc(strlen(o->path) + TEMP_TAIL + 1, 1);
    return o->path && (direct || o->temp) ? 0 : GR_E_NOMEM_HOST;
}

int gr_output_open(struct gr_output **out, const char *path, unsigned flags)
{
    mode_t mode = flags & GR_OUTPUT_PRIVATE ? 0600 : 0666;
    struct stat st;
    bool direct;
    *out = NULL;
    int rc = look(path, flags, &st, &direct);
    if (rc)
        return rc;
    direct |= (flags & GR_OUTPUT_LIVE) != 0;
    struct gr_output *o = *out = gr_calloc(1, sizeof *o);
    rc = o ? set_names(o, path, st.st_mode != 0, direct) : GR_E_NOMEM_HOST;
    if (rc) {
        gr_output_abort(out);
        return rc;
    }
    o->quick = flags & GR_OUTPUT_QUICK;
    int fd = direct ? open_direct(o, &st, mode) : open_temp(o, mode);
    o->out = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (o->out)
        return 0;
    int err = errno;
    if (fd >= 0)
        close(fd);
    gr_output_abort(out);
    return gr_fail(GR_E_IO, "%s: %s; choose another name", path, strerror(err));
}

/* ---- writing ---- */

static int failed(struct gr_output *o, int err)
{
    o->err = o->err ? o->err : err ? err : EIO;
    return gr_fail(GR_E_IO,
                   o->temp ? "%s: %s; give a path with room (what had this name is untouched)"
                           : "%s: %s; choose another name (what was written so far is incomplete)",
                   o->path, strerror(o->err));
}

int gr_output_put(struct gr_output *o, const void *data, size_t n)
{
    if (!o->err && (n == 0 || fwrite(data, 1, n, o->out) == n))
        return 0;
    return failed(o, errno);
}

int gr_output_flush(struct gr_output *o)
{
    return !o->err && fflush(o->out) == 0 ? 0 : failed(o, errno);
}

int gr_output_seek(struct gr_output *o, uint64_t at)
{
    return !o->err && fseeko(o->out, (off_t)at, SEEK_SET) == 0 ? 0 : failed(o, errno);
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

static bool finish(struct gr_output *o)
{
    bool replaces = o->temp, waits = replaces && !o->quick;
    if (o->err || fflush(o->out) != 0 || (waits && fsync(fileno(o->out)) != 0) ||
        (replaces && !name_it(o)))
        return false;
    FILE *out = o->out;
    o->out = NULL;
    if (fclose(out) != 0 || (replaces && rename(o->temp, o->path) != 0))
        return false;
    o->named = false;
    if (waits)
        (void)sync_directory(o->path); /* not supported by some file systems; the data itself is
                                          safe */
    return true;
}

int gr_output_commit(struct gr_output **out)
{
    int rc = finish(*out) ? 0 : failed(*out, errno);
    gr_output_abort(out);
    return rc;
}

void gr_output_abort(struct gr_output **out)
{
    struct gr_output *o = *out;
    if (!o)
        return;
    if (o->out)
        fclose(o->out);
    if (o->named)
        unlink(o->temp);
    gr_free(o->temp);
    gr_free(o->path);
    gr_free(o);
    *out = NULL;
}
