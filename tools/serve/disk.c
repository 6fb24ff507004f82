/* Prefixes on disk. */
#include "disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <nettle/sha2.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "gpurun.h"
#include "tools/cli/say.h"

#define SUFFIX ".prefix"
#define VERSION 1

enum { SUM = SHA256_DIGEST_SIZE, N_HEX = 2 * SUM, N_NAME = N_HEX + sizeof SUFFIX };

/* The beginning of a file; tokens and the state follow. */
struct head {
    char magic[8];
    uint32_t version, n_token;
    uint64_t owner, n_state;
    uint8_t model[SUM]; /* stands for the model and what else a state depends on */
    uint8_t sum[SUM];   /* of this, with zeros here and in n_state, and the tokens: the name */
};
static const char magic[8] = "gpurunPX";

struct file {
    char name[N_NAME];
    uint64_t owner, bytes;
    struct timespec used;
    int32_t *token; /* [n]; NULL: of another model */
    int32_t n;
    bool pending; /* being written, as one file at a time is */
};

/* A file that the thread of a folder writes, one at a time. */
struct job {
    enum { NO_JOB, WRITING, WRITTEN } stage;
    struct head head;
    char name[N_NAME];
    const int32_t *token; /* of the file in the list */
    void *state;          /* of gr_state_save */
    int rc;
    char message[512];
};

struct gr_disk {
    int dir;
    char *path;
    uint64_t most_bytes;
    struct gr_session *session;
    bool whole, failed; /* failed: a failure to write was said */
    int32_t too_long;   /* tokens of the shortest text whose file exceeded most_bytes */
    uint8_t model[SUM];
    struct file *file; /* [n_file] */
    int32_t n_file, capacity;
    struct gr_disk_stats stats;

    pthread_t thread;
    bool started; /* the thread */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Under the lock: */
    struct job job;
    bool ends; /* the thread is to end */
};

/* ---- sums ---- */

static void sum_of(const struct head *h, const int32_t *token, uint8_t sum[SUM])
{
    struct head zero = *h;
    struct sha256_ctx c;
    memset(zero.sum, 0, SUM);
    zero.n_state = 0;
    sha256_init(&c);
    sha256_update(&c, sizeof zero, (const uint8_t *)&zero);
    sha256_update(&c, h->n_token * sizeof *token, (const uint8_t *)token);
    sha256_digest(&c, SUM, sum);
}

/* Sum of all that a state of the session depends on: of the state of a sequence without cells. */
static int model_sum(struct gr_session *session, uint8_t sum[SUM])
{
    struct sha256_ctx c;
    void *data;
    size_t n;
    int rc = gr_state_save(session, 0, NULL, 0, &data, &n);
    if (rc)
        return rc;
    sha256_init(&c);
    sha256_update(&c, n, data);
    sha256_digest(&c, SUM, sum);
    gr_state_free(data);
    return 0;
}

static struct head head_of(const struct gr_disk *s, uint64_t owner, const int32_t *token, int32_t n)
{
    struct head h = {.version = VERSION, .n_token = (uint32_t)n, .owner = owner};
    memcpy(h.magic, magic, sizeof h.magic);
    memcpy(h.model, s->model, SUM);
    sum_of(&h, token, h.sum);
    return h;
}

/* Names a file by model, owner and text. */
static void name_of(const struct head *h, char name[N_NAME])
{
    for (int i = 0; i < SUM; i++)
        snprintf(name + 2 * i, 3, "%02x", h->sum[i]);
    memcpy(name + N_HEX, SUFFIX, sizeof SUFFIX);
}

/* ---- files ---- */

static void forget(struct gr_disk *s, int32_t i)
{
    s->stats.bytes -= s->file[i].bytes;
    s->stats.n_file -= s->file[i].token != NULL;
    free(s->file[i].token);
    s->file[i] = s->file[--s->n_file];
}

static void drop(struct gr_disk *s, int32_t i)
{
    (void)unlinkat(s->dir, s->file[i].name, 0);
    forget(s, i);
}

static void drop_damaged(struct gr_disk *s, int32_t i, const char *why)
{
    gr_say_warning("%s/%s is damaged (%s) and removed", s->path, s->file[i].name, why);
    s->stats.n_damaged++;
    drop(s, i);
}

/* Adds a file; its tokens belong to the disk. */
static int add(struct gr_disk *s, const struct file *f)
{
    if (s->n_file == s->capacity) {
        int32_t capacity = 2 * s->capacity + 16;
        struct file *grown = realloc(s->file, (size_t)capacity * sizeof *grown);
        if (!grown)
            return GR_E_NOMEM_HOST;
        s->file = grown, s->capacity = capacity;
    }
    s->file[s->n_file++] = *f;
    s->stats.bytes += f->bytes;
    s->stats.n_file += f->token != NULL;
    return 0;
}

/* Removes the files used longest ago until there is room for so many bytes. */
static void trim(struct gr_disk *s, uint64_t bytes)
{
    while (s->n_file && s->stats.bytes + bytes > s->most_bytes) {
        int32_t last = 0;
        for (int32_t i = 1; i < s->n_file; i++) {
            const struct timespec *a = &s->file[i].used, *b = &s->file[last].used;
            if (a->tv_sec < b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec < b->tv_nsec))
                last = i;
        }
        drop(s, last);
    }
}

static void touch(struct gr_disk *s, int32_t i)
{
    clock_gettime(CLOCK_REALTIME, &s->file[i].used);
    struct timespec times[] = {s->file[i].used, s->file[i].used};
    (void)utimensat(s->dir, s->file[i].name, times, AT_SYMLINK_NOFOLLOW);
}

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

/* Reads head and tokens, of a file of this model. Returns why they are damaged, NULL: they are
 * not. */
static const char *read_text(const struct gr_disk *s, int fd, struct file *f)
{
    struct head h;
    uint8_t sum[SUM];
    char name[N_NAME];
    if (f->bytes < sizeof h || !read_at(fd, &h, sizeof h, 0))
        return "too short";
    if (memcmp(h.magic, magic, sizeof magic) != 0)
        return "not a prefix";
    uint64_t n_bytes = h.n_token * sizeof *f->token;
    if (h.version != VERSION || (h.n_token && memcmp(h.model, s->model, SUM) != 0))
        return NULL;
    if (!h.n_token || h.n_token > INT32_MAX || n_bytes > f->bytes - sizeof h ||
        h.n_state != f->bytes - sizeof h - n_bytes)
        return "wrong length";
    f->token = malloc(n_bytes);
    f->n = (int32_t)h.n_token, f->owner = h.owner;
    if (!f->token)
        return NULL;
    if (!read_at(fd, f->token, n_bytes, sizeof h))
        return "unreadable";
    sum_of(&h, f->token, sum);
    name_of(&h, name);
    return memcmp(sum, h.sum, SUM) != 0 ? "wrong checksum" : strcmp(name, f->name) ? "name" : NULL;
}

/* Adds the file of a name, which is not followed when it is a link. */
static int read_file(struct gr_disk *s, const char *name)
{
    struct stat st;
    struct file f = {0};
    memcpy(f.name, name, N_NAME);
    int fd = openat(s->dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        if (fd >= 0)
            close(fd);
        return 0;
    }
    f.bytes = (uint64_t)st.st_size, f.used = st.st_mtim;
    const char *why = read_text(s, fd, &f);
    close(fd);
    int rc = add(s, &f);
    if (rc)
        free(f.token);
    else if (why)
        drop_damaged(s, s->n_file - 1, why);
    return rc;
}

/* ---- the folder ---- */

/* Returns whether it is the name of a file, or with `rest` of one that was not completed. */
static bool is_name(const char *name, const char **rest)
{
    bool hex = strspn(name, "0123456789abcdef") == N_HEX;
    bool ours = hex && !strncmp(name + N_HEX, SUFFIX, sizeof SUFFIX - 1);
    *rest = ours ? name + N_NAME - 1 : "";
    return ours;
}

static int read_folder(struct gr_disk *s)
{
    s->dir = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int fd = s->dir < 0 ? -1 : dup(s->dir), rc = 0;
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    const char *rest;
    if (!d) {
        gr_say_error("%s: %s", s->path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return GR_E_IO;
    }
    for (struct dirent *e; !rc && (e = readdir(d));) {
        if (!is_name(e->d_name, &rest))
            continue;
        if (!*rest)
            rc = read_file(s, e->d_name);
        else if (!strncmp(rest, ".tmp-", 5))
            (void)unlinkat(s->dir, e->d_name, 0);
    }
    closedir(d);
    if (rc)
        gr_say_error("%s: %s", s->path, gr_status_text(rc));
    return rc;
}

int gr_disk_open(struct gr_disk **out, const char *dir, uint64_t most_bytes,
                 struct gr_session *session, bool whole)
{
    struct gr_disk *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return GR_E_NOMEM_HOST;
    *s = (struct gr_disk){.dir = -1,
                          .most_bytes = most_bytes,
                          .session = session,
                          .whole = whole,
                          .too_long = INT32_MAX};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->path = strdup(dir);
    int rc = s->path ? gr_output_folder(dir) : GR_E_NOMEM_HOST;
    if (!rc)
        rc = model_sum(session, s->model);
    if (rc)
        gr_say_error("%s: %s", dir, s->path ? gr_error_message() : gr_status_text(rc));
    else
        rc = read_folder(s);
    if (rc)
        gr_disk_close(&s);
    else
        trim(s, 0);
    *out = s;
    return rc;
}

/* ---- use ---- */

/* Returns the length of the common beginning of a file's text and token [n]. */
static int32_t common(const struct file *f, uint64_t owner, const int32_t *token, int32_t n)
{
    int32_t i = 0;
    if (!f->token || f->owner != owner)
        return 0;
    while (i < n && i < f->n && f->token[i] == token[i])
        i++;
    return i;
}

int32_t gr_disk_find(const struct gr_disk *disk, uint64_t owner, const int32_t *token, int32_t n,
                     int32_t *file)
{
    int32_t best = 0;
    *file = -1;
    for (int32_t i = 0; i < disk->n_file; i++) {
        int32_t length = common(&disk->file[i], owner, token, n);
        if (disk->whole && length < disk->file[i].n)
            length = 0;
        if (length > best || (length && length == best && disk->file[i].n < disk->file[*file].n))
            best = length, *file = i;
    }
    return best;
}

int32_t gr_disk_length(const struct gr_disk *disk, int32_t file)
{
    return disk->file[file].n;
}

/* Reads a file's state (free). GR_E_IO: another program has removed or replaced it. */
static int read_state(const struct gr_disk *s, const struct file *f, void **data, size_t *n)
{
    uint64_t at = sizeof(struct head) + (uint64_t)f->n * sizeof *f->token;
    int fd = openat(s->dir, f->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT ? GR_E_IO : GR_E_NOMEM_HOST; /* there are no descriptors now */
    struct stat st;
    *n = (size_t)(f->bytes - at);
    *data = malloc(*n ? *n : 1);
    int rc = !*data                                               ? GR_E_NOMEM_HOST
             : fstat(fd, &st) || (uint64_t)st.st_size != f->bytes ? GR_E_IO
             : read_at(fd, *data, *n, at)                         ? 0
                                                                  : GR_E_CORRUPT;
    close(fd);
    return rc;
}

/* Waits for a file that is being written. Returns where it is then, -1: it could not be. */
static int32_t wait_for(struct gr_disk *s, int32_t file)
{
    char name[N_NAME];
    memcpy(name, s->file[file].name, N_NAME);
    gr_disk_wait(s);
    for (int32_t i = 0; i < s->n_file; i++) {
        if (!strcmp(s->file[i].name, name))
            return i;
    }
    return -1;
}

int gr_disk_load(struct gr_disk *disk, int32_t file, int32_t seq)
{
    void *data = NULL;
    size_t n;
    const char *why = "too short";
    if (disk->file[file].pending && (file = wait_for(disk, file)) < 0)
        return GR_E_IO;
    int rc = read_state(disk, &disk->file[file], &data, &n);
    if (!rc) {
        rc = gr_state_load(disk->session, seq, data, n, NULL, NULL);
        why = gr_error_message();
        rc = rc == GR_E_INVALID || rc == GR_E_UNSUPPORTED ? GR_E_CORRUPT : rc;
    }
    if (!rc && gr_kv_seq_pos_max(disk->session, seq) != disk->file[file].n - 1) {
        gr_kv_seq_rm(disk->session, seq, -1, -1);
        rc = GR_E_CORRUPT, why = "a state of another text";
    }
    free(data);
    if (rc == GR_E_CORRUPT)
        drop_damaged(disk, file, why);
    else if (rc == GR_E_IO)
        forget(disk, file);
    else if (!rc)
        touch(disk, file);
    disk->stats.n_loaded += !rc;
    return rc;
}

/* ---- the thread that writes ---- */

static int write_file(struct gr_disk *s, const struct head *h, const int32_t *token,
                      const void *state, const char *name)
{
    struct gr_output *o = NULL;
    char *path;
    if (asprintf(&path, "%s/%s", s->path, name) < 0)
        return GR_E_NOMEM_HOST;
    int rc = gr_output_open(&o, path, GR_OUTPUT_PRIVATE);
    if (!rc)
        rc = gr_output_put(o, h, sizeof *h);
    if (!rc)
        rc = gr_output_put(o, token, h->n_token * sizeof *token);
    if (!rc)
        rc = gr_output_put(o, state, h->n_state);
    if (!rc)
        rc = gr_output_commit(&o);
    gr_output_abort(&o);
    free(path);
    return rc;
}

static void *write_files(void *user)
{
    struct gr_disk *s = user;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (s->job.stage != WRITING && !s->ends)
            pthread_cond_wait(&s->changed, &s->lock);
        if (s->job.stage != WRITING)
            break;
        struct job *j = &s->job;
        pthread_mutex_unlock(&s->lock);
        int rc = write_file(s, &j->head, j->token, j->state, j->name);
        pthread_mutex_lock(&s->lock);
        snprintf(j->message, sizeof j->message, "%s", rc ? gr_error_message() : "");
        j->rc = rc, j->stage = WRITTEN;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void say_failed(struct gr_disk *s, const char *why)
{
    if (!s->failed)
        gr_say_warning("%s: no prefix can be saved: %s", s->path, why);
    s->failed = true;
}

/* Removes files whose text is a beginning of a file's, and not all of it. */
static void drop_beginnings(struct gr_disk *s, const struct file *of)
{
    const struct file all = *of;
    for (int32_t i = s->n_file - 1; i >= 0 && !s->whole; i--) {
        const struct file *f = &s->file[i];
        if (f->token && f->n < all.n && common(f, all.owner, all.token, all.n) == f->n)
            drop(s, i);
    }
}

/* Takes note of a file that was written, if there is one; waits for it. */
static void collect(struct gr_disk *s, bool waits)
{
    struct job j;
    pthread_mutex_lock(&s->lock);
    while (waits && s->job.stage == WRITING)
        pthread_cond_wait(&s->changed, &s->lock);
    j = s->job;
    if (j.stage == WRITTEN)
        s->job.stage = NO_JOB;
    pthread_mutex_unlock(&s->lock);
    if (j.stage != WRITTEN)
        return;
    int32_t i = 0;
    while (!s->file[i].pending)
        i++;
    gr_state_free(j.state);
    s->file[i].pending = false;
    if (j.rc) {
        forget(s, i);
        say_failed(s, j.message);
    } else {
        s->stats.n_saved++;
        drop_beginnings(s, &s->file[i]);
    }
}

void gr_disk_wait(struct gr_disk *disk)
{
    collect(disk, true);
}

struct gr_disk_stats gr_disk_stats(struct gr_disk *disk)
{
    collect(disk, false);
    return disk->stats;
}

/* Hands a state to the thread, which writes nothing. GR_E_NOMEM_HOST: there can be none. */
static int hand_over(struct gr_disk *s, const struct head *h, const int32_t *token, void *state)
{
    if (!s->started && pthread_create(&s->thread, NULL, write_files, s))
        return GR_E_NOMEM_HOST;
    s->started = true;
    pthread_mutex_lock(&s->lock);
    s->job = (struct job){.stage = WRITING, .head = *h, .token = token, .state = state};
    name_of(h, s->job.name);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

/* ---- saving ---- */

/* Returns whether a file has the text already, which counts as a use of it. */
static bool is_there(struct gr_disk *s, uint64_t owner, const int32_t *token, int32_t n)
{
    for (int32_t i = 0; i < s->n_file; i++) {
        const struct file *f = &s->file[i];
        if (common(f, owner, token, n) == n && (f->n == n || !s->whole)) {
            touch(s, i);
            return true;
        }
    }
    return false;
}

/* Saves a state with its text; the state is the thread's after success. */
static int save(struct gr_disk *s, const struct head *h, const int32_t *token, void *state)
{
    struct file f = {.owner = h->owner, .n = (int32_t)h->n_token, .pending = true};
    f.bytes = sizeof *h + h->n_token * sizeof *token + h->n_state;
    if (f.bytes > s->most_bytes)
        return GR_E_TOO_LARGE;
    name_of(h, f.name);
    trim(s, f.bytes);
    f.token = malloc(h->n_token * sizeof *token);
    int rc = f.token ? add(s, &f) : GR_E_NOMEM_HOST;
    if (rc) {
        free(f.token);
        return rc;
    }
    memcpy(f.token, token, h->n_token * sizeof *token);
    clock_gettime(CLOCK_REALTIME, &s->file[s->n_file - 1].used);
    rc = hand_over(s, h, f.token, state);
    if (rc)
        forget(s, s->n_file - 1);
    return rc;
}

void gr_disk_save(struct gr_disk *disk, int32_t seq, uint64_t owner, const int32_t *token,
                  int32_t n)
{
    void *state = NULL;
    size_t n_state = 0;
    gr_disk_wait(disk);
    if (n < 1 || n >= disk->too_long || is_there(disk, owner, token, n))
        return;
    struct head h = head_of(disk, owner, token, n);
    int rc = gr_state_save(disk->session, seq, NULL, 0, &state, &n_state);
    if (rc) {
        say_failed(disk, gr_error_message());
        return;
    }
    h.n_state = n_state;
    rc = save(disk, &h, token, state);
    if (rc)
        gr_state_free(state);
    if (rc == GR_E_TOO_LARGE)
        disk->too_long = n;
    else if (rc)
        say_failed(disk, gr_status_text(rc));
}

void gr_disk_close(struct gr_disk **disk)
{
    struct gr_disk *s = *disk;
    if (!s)
        return;
    gr_disk_wait(s);
    pthread_mutex_lock(&s->lock);
    s->ends = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->started)
        pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    for (int32_t i = 0; i < s->n_file; i++)
        free(s->file[i].token);
    if (s->dir >= 0)
        close(s->dir);
    free(s->file);
    free(s->path);
    free(s);
    *disk = NULL;
}
