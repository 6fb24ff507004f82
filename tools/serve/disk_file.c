/* Files of prefixes. */
#include "disk_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpurun.h"
#include "tools/cli/say.h"

#define TEMPORARY ".tmp-"
enum { VERSION = 2, TRIES = 10 };

static const char magic[8] = "gpurunPX";

/* ---- sums and names ---- */

void gr_disk_sum(const void *data, size_t n, uint8_t sum[GR_DISK_SUM])
{
    struct sha256_ctx c;
    sha256_init(&c);
    sha256_update(&c, n, data);
    sha256_digest(&c, GR_DISK_SUM, sum);
}

static void sum_of(const struct gr_disk_head *h, const int32_t *token, uint8_t sum[GR_DISK_SUM])
{
    struct gr_disk_head zero = *h;
    struct sha256_ctx c;
    memset(zero.sum, 0, sizeof zero.sum);
    sha256_init(&c);
    sha256_update(&c, sizeof zero, (const uint8_t *)&zero);
    sha256_update(&c, h->n_token * sizeof *token, (const uint8_t *)token);
    sha256_digest(&c, GR_DISK_SUM, sum);
}

void gr_disk_seal(struct gr_disk_head *h, const int32_t *token)
{
    memcpy(h->magic, magic, sizeof magic);
    h->version = VERSION, h->zero = 0;
    sum_of(h, token, h->sum);
}

void gr_disk_name_of(const struct gr_disk_head *h, const int32_t *token, char name[GR_DISK_NAME])
{
    struct gr_disk_head text = *h;
    uint8_t sum[GR_DISK_SUM];
    text.n_state = 0, text.least = 0; /* may differ for one text */
    sum_of(&text, token, sum);
    for (int i = 0; i < GR_DISK_SUM; i++)
        snprintf(name + 2 * i, 3, "%02x", sum[i]);
    memcpy(name + GR_DISK_HEX, GR_DISK_SUFFIX, sizeof GR_DISK_SUFFIX);
}

/* ---- the folder ---- */

/* Returns whether nobody but this user, and root, can have written to it. */
static bool is_private(const struct stat *st)
{
    return !st->st_uid || (st->st_uid == geteuid() && !(st->st_mode & (S_IWGRP | S_IWOTH)));
}

int gr_disk_open_folder(const char *path, int *dir)
{
    struct stat st;
    *dir = -1;
    if (!mkdir(path, 0700) || errno == EEXIST)
        *dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*dir < 0 || fstat(*dir, &st) || faccessat(*dir, ".", R_OK | W_OK | X_OK, AT_EACCESS)) {
        gr_say_error("%s: %s; choose another folder", path, strerror(errno));
        return GR_E_IO;
    }
    if (is_private(&st))
        return 0;
    if (st.st_uid != geteuid())
        gr_say_error("%s belongs to another user, who could read and change what is kept there; "
                     "choose another folder",
                     path);
    else
        gr_say_error("other users may write to %s, where prompts and answers are kept: chmod go-w, "
                     "or choose another folder",
                     path);
    return GR_E_IO;
}

/* ---- reading ---- */

static bool read_at(int fd, void *to, uint64_t n, uint64_t at)
{
    for (uint64_t done = 0; done < n;) {
        ssize_t k = pread(fd, (char *)to + done, n - done, (off_t)(at + done));
        if (k <= 0)
            return false;
        done += (uint64_t)k;
    }
    return true;
}

/* Opens a file of this user's; -1: it is none, *foreign: it is another's. */
static int open_file(int dir, const char *name, struct stat *st, bool *foreign)
{
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    bool ours = fd >= 0 && !fstat(fd, st) && S_ISREG(st->st_mode);
    if (ours && is_private(st))
        return fd;
    *foreign |= ours;
    if (fd >= 0)
        close(fd);
    errno = fd >= 0 ? ENOENT : errno;
    return -1;
}

/* Reads head and tokens of a file of the model. Returns why they are damaged, NULL: they are not.
 */
static const char *read_text(int fd, const uint8_t model[GR_DISK_SUM], struct gr_disk_file *f)
{
    struct gr_disk_head h;
    uint8_t sum[GR_DISK_SUM];
    char name[GR_DISK_NAME];
    if (f->bytes < sizeof h || !read_at(fd, &h, sizeof h, 0))
        return "too short";
    if (memcmp(h.magic, magic, sizeof magic) != 0)
        return "not a prefix";
    uint64_t n_bytes = h.n_token * sizeof *f->token;
    if (h.version != VERSION || (h.n_token && memcmp(h.model, model, GR_DISK_SUM) != 0))
        return NULL;
    if (!h.n_token || h.n_token > INT32_MAX || h.least > h.n_token ||
        n_bytes > f->bytes - sizeof h || h.n_state != f->bytes - sizeof h - n_bytes)
        return "wrong length";
    f->token = malloc(n_bytes);
    f->n = (int32_t)h.n_token, f->owner = h.owner, f->least = (int32_t)h.least;
    if (!f->token)
        return NULL;
    if (!read_at(fd, f->token, n_bytes, sizeof h))
        return "unreadable";
    sum_of(&h, f->token, sum);
    gr_disk_name_of(&h, f->token, name);
    return memcmp(sum, h.sum, GR_DISK_SUM) != 0 ? "wrong checksum"
           : strcmp(name, f->name) != 0         ? "name"
                                                : NULL;
}

int gr_disk_read_state(int dir, const char *name, uint64_t bytes, int32_t n_token, void **state,
                       size_t *n)
{
    uint64_t at = sizeof(struct gr_disk_head) + (uint64_t)n_token * sizeof(int32_t);
    struct stat st;
    bool foreign = false;
    *state = NULL;
    int fd = open_file(dir, name, &st, &foreign);
    if (fd < 0)
        return errno == ENOENT ? GR_E_IO : GR_E_NOMEM_HOST; /* there are no descriptors now */
    *n = (size_t)(bytes - at);
    *state = malloc(*n ? *n : 1);
    int rc = !*state                         ? GR_E_NOMEM_HOST
             : (uint64_t)st.st_size != bytes ? GR_E_IO
             : read_at(fd, *state, *n, at)   ? 0
                                             : GR_E_CORRUPT;
    close(fd);
    return rc;
}

/* ---- listing ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Returns whether it is the name of a file, or with `rest` of one that was not completed. */
static bool is_name(const char *name, const char **rest)
{
    bool hex = strspn(name, "0123456789abcdef") == GR_DISK_HEX;
    bool ours = hex && !strncmp(name + GR_DISK_HEX, GR_DISK_SUFFIX, sizeof GR_DISK_SUFFIX - 1);
    *rest = ours ? name + GR_DISK_NAME - 1 : "";
    return ours;
}

/* Removes a temporary file, unless its writer is at work. */
static void remove_left(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return;
    if (!flock(fd, LOCK_EX | LOCK_NB))
        (void)unlinkat(dir, name, 0);
    close(fd);
}

struct list {
    struct gr_disk_found *found;
    int32_t n, capacity;
};

static int add_found(struct list *l, const struct gr_disk_found *found)
{
    if (l->n == l->capacity) {
        int32_t capacity = 2 * l->capacity + 16;
        struct gr_disk_found *grown = realloc(l->found, (size_t)capacity * sizeof *grown);
        if (!grown)
            return GR_E_NOMEM_HOST;
        l->found = grown, l->capacity = capacity;
    }
    l->found[l->n++] = *found;
    return 0;
}

int gr_disk_scan(int dir, const uint8_t model[GR_DISK_SUM], char (*known)[GR_DISK_NAME],
                 int32_t n_known, struct gr_disk_found **found, int32_t *n, bool *foreign)
{
    struct list l = {0};
    const char *rest;
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;
    DIR *d = copy < 0 ? NULL : fdopendir(copy);
    if (!d && copy >= 0)
        close(copy);
    if (n_known)
        qsort(known, (size_t)n_known, sizeof *known, by_name);
    for (struct dirent *e; d && !rc && (e = readdir(d));) {
        struct gr_disk_found f = {0};
        struct stat st;
        if (!is_name(e->d_name, &rest))
            continue;
        if (*rest) {
            if (!strncmp(rest, TEMPORARY, strlen(TEMPORARY)))
                remove_left(dir, e->d_name);
            continue;
        }
        int fd = open_file(dir, e->d_name, &st, foreign);
        if (fd < 0)
            continue;
        memcpy(f.file.name, e->d_name, GR_DISK_NAME);
        f.file.bytes = (uint64_t)st.st_size, f.file.used = st.st_mtim;
        f.known =
            n_known && bsearch(f.file.name, known, (size_t)n_known, sizeof *known, by_name) != NULL;
        if (!f.known)
            f.damage = read_text(fd, model, &f.file);
        close(fd);
        rc = add_found(&l, &f);
        if (rc)
            free(f.file.token);
    }
    rc = rc ? rc : d ? 0 : GR_E_IO;
    if (d)
        closedir(d);
    *found = l.found, *n = l.n;
    return rc;
}

void gr_disk_found_free(struct gr_disk_found *found, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        free(found[i].file.token);
    free(found);
}

/* ---- writing ---- */

/* Makes a temporary file with its lock; -1, with errno. */
static int create(int dir, const char *name, char *temporary, size_t n)
{
    for (int i = 0; i < TRIES; i++) {
        struct stat st;
        uint32_t word;
        if (getrandom(&word, sizeof word, 0) != sizeof word)
            return -1;
        snprintf(temporary, n, "%s" TEMPORARY "%08x", name, (unsigned)word);
        int fd = openat(dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0 && errno != EEXIST)
            return -1;
        if (fd < 0)
            continue;
        bool removed = flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
        if (!removed && !fstat(fd, &st) && st.st_nlink)
            return fd;
        close(fd); /* another program has taken it for one that was left */
    }
    errno = EEXIST;
    return -1;
}

static bool put(int fd, const void *data, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = write(fd, (const char *)data + done, n - done);
        if (k < 0 && errno != EINTR)
            return false;
        done += k > 0 ? (size_t)k : 0;
    }
    return true;
}

int gr_disk_write(int dir, const char *name, const struct gr_disk_head *h, const int32_t *token,
                  const void *state, char *message, size_t n)
{
    char temporary[GR_DISK_NAME + 16];
    int fd = create(dir, name, temporary, sizeof temporary), error = errno;
    if (fd >= 0) {
        bool good = put(fd, h, sizeof *h) && put(fd, token, h->n_token * sizeof *token) &&
                    put(fd, state, h->n_state) && !fsync(fd) &&
                    !renameat(dir, temporary, dir, name);
        error = good ? 0 : errno;
        if (!good)
            (void)unlinkat(dir, temporary, 0);
        else
            (void)fsync(dir);
        close(fd);
    }
    snprintf(message, n, "%s", error ? strerror(error) : "");
    return error ? GR_E_IO : 0;
}
