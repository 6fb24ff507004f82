/* Prefixes on disk: which files there are, and which of them go. */
#include "disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "disk_queue.h"
#include "gpurun.h"
#include "tools/cli/say.h"

enum {
    MOST_WRITES = 16, /* states that wait to be written */
    MOST_READS = 4,   /* files that are read, or were and are not used yet */
    MOST_JOBS = 64,   /* with more, files are not marked as used */
    SCAN_SECONDS = 2  /* between two looks at what other programs did */
};
#define MOST_WAITING (UINT64_C(1) << 30) /* bytes of states that wait, if there are several */

struct gr_disk {
    int dir;
    char *path;
    uint64_t most_bytes;
    struct gr_session *session;
    bool whole, failed; /* failed: a failure to write was said */
    bool foreign;       /* that there are others' files was said */
    int32_t too_long;   /* tokens of the shortest text whose file exceeded most_bytes */
    uint8_t model[GR_DISK_SUM];
    struct gr_disk_file *file; /* [n_file] */
    int32_t n_file, capacity;
    struct gr_disk_stats stats;
    struct gr_disk_queue *queue;
    int32_t n_write, n_job;               /* n_job: all that were not taken back, reads included */
    struct gr_disk_job *read[MOST_READS]; /* NULL: free */
    uint64_t waiting;                     /* bytes of states that wait to be written */
    struct timespec scanned;              /* monotonic */
    bool scanning;
};

/* ---- jobs ---- */

/* Puts a job, or frees it. */
static int put(struct gr_disk *s, struct gr_disk_job *job)
{
    int rc = gr_disk_queue_put(s->queue, job);
    if (rc)
        gr_disk_job_free(job);
    s->n_job += !rc;
    return rc;
}

static struct gr_disk_job *job_of(enum gr_disk_op op, const char *name)
{
    struct gr_disk_job *job = calloc(1, sizeof *job);
    if (job) {
        job->op = op;
        snprintf(job->name, sizeof job->name, "%s", name);
    }
    return job;
}

bool gr_disk_is_busy(const struct gr_disk *disk)
{
    return disk->n_job > 0;
}

/* ---- files ---- */

/* Returns the place of a file; n_file: there is none. */
static int32_t place_of(const struct gr_disk *s, const char *name)
{
    int32_t i = 0;
    while (i < s->n_file && strcmp(s->file[i].name, name) != 0)
        i++;
    return i;
}

static void forget(struct gr_disk *s, int32_t i)
{
    s->stats.bytes -= s->file[i].bytes;
    s->stats.n_file -= s->file[i].token != NULL;
    free(s->file[i].token);
    s->file[i] = s->file[--s->n_file];
}

/* Removes a file that is not pending. */
static void drop(struct gr_disk *s, int32_t i)
{
    struct gr_disk_job *job = job_of(GR_DISK_REMOVE, s->file[i].name);
    if (job)
        (void)put(s, job);
    forget(s, i);
}

static void drop_damaged(struct gr_disk *s, int32_t i, const char *why)
{
    gr_say_warning("%s/%s is damaged (%s) and removed", s->path, s->file[i].name, why);
    s->stats.n_damaged++;
    drop(s, i);
}

/* Adds a file; its tokens belong to the disk. */
static int add(struct gr_disk *s, const struct gr_disk_file *f)
{
    if (s->n_file == s->capacity) {
        int32_t capacity = 2 * s->capacity + 16;
        struct gr_disk_file *grown = realloc(s->file, (size_t)capacity * sizeof *grown);
        if (!grown)
            return GR_E_NOMEM_HOST;
        s->file = grown, s->capacity = capacity;
    }
    s->file[s->n_file++] = *f;
    s->stats.bytes += f->bytes;
    s->stats.n_file += f->token != NULL;
    return 0;
}

static bool is_older(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec < b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec < b->tv_nsec);
}

/* Removes the files used longest ago until there is room for so many bytes; false, with none
 * removed for them: those that are to be written leave none. */
static bool trim(struct gr_disk *s, uint64_t bytes)
{
    uint64_t pending = 0;
    for (int32_t i = 0; i < s->n_file; i++)
        pending += s->file[i].pending ? s->file[i].bytes : 0;
    if (bytes && pending + bytes > s->most_bytes)
        return false;
    while (s->n_file && s->stats.bytes + bytes > s->most_bytes) {
        int32_t last = -1;
        for (int32_t i = 0; i < s->n_file; i++) {
            const struct gr_disk_file *f = &s->file[i];
            if (!f->pending && (last < 0 || is_older(&f->used, &s->file[last].used)))
                last = i;
        }
        if (last < 0)
            return false;
        drop(s, last);
    }
    return true;
}

static void touch(struct gr_disk *s, int32_t i)
{
    struct gr_disk_file *f = &s->file[i];
    bool late = f->pending || s->n_job > MOST_JOBS;
    struct gr_disk_job *job = late ? NULL : job_of(GR_DISK_TOUCH, f->name);
    clock_gettime(CLOCK_REALTIME, &f->used);
    if (!job)
        return;
    job->used = f->used;
    (void)put(s, job);
}

/* ---- the folder ---- */

/* Takes note of a file that was listed; its text is the list's from then on. */
static int note(struct gr_disk *s, struct gr_disk_found *f)
{
    int32_t i = place_of(s, f->file.name);
    if (i < s->n_file) {
        s->stats.bytes += f->file.bytes - s->file[i].bytes;
        s->file[i].bytes = f->file.bytes;
        if (is_older(&s->file[i].used, &f->file.used))
            s->file[i].used = f->file.used;
        return 0;
    }
    if (f->known)
        return 0; /* removed since */
    int rc = add(s, &f->file);
    if (rc)
        return rc;
    f->file.token = NULL;
    if (f->damage)
        drop_damaged(s, s->n_file - 1, f->damage);
    return 0;
}

static int by_name(const void *a, const void *b)
{
    const struct gr_disk_found *f = a, *g = b;
    return strcmp(f->file.name, g->file.name);
}

/* Forgets files that were there and are no longer: other programs have removed them. */
static void forget_missing(struct gr_disk *s, const struct gr_disk_job *j)
{
    for (int32_t i = 0; i < j->n_known; i++) {
        struct gr_disk_found key = {0};
        memcpy(key.file.name, j->known[i], GR_DISK_NAME);
        if (j->n_found && bsearch(&key, j->found, (size_t)j->n_found, sizeof key, by_name))
            continue;
        int32_t at = place_of(s, j->known[i]);
        if (at < s->n_file && !s->file[at].pending)
            forget(s, at);
    }
}

/* Brings the list up to what was found in the folder. */
static int apply_scan(struct gr_disk *s, struct gr_disk_job *j)
{
    int rc = j->rc;
    if (!rc && j->n_found)
        qsort(j->found, (size_t)j->n_found, sizeof *j->found, by_name);
    if (!rc)
        forget_missing(s, j);
    for (int32_t i = 0; i < j->n_found && !rc; i++)
        rc = note(s, &j->found[i]);
    if (j->foreign && !s->foreign)
        gr_say_warning("%s has files that belong to other users, or that these may write to: they "
                       "are not used",
                       s->path);
    s->foreign |= j->foreign;
    s->scanning = false;
    (void)trim(s, 0);
    return rc;
}

/* Has the folder listed. */
static int scan(struct gr_disk *s)
{
    struct gr_disk_job *job = job_of(GR_DISK_SCAN, "");
    if (job && s->n_file)
        job->known = malloc((size_t)s->n_file * sizeof *job->known);
    if (!job || (s->n_file && !job->known)) {
        gr_disk_job_free(job);
        return GR_E_NOMEM_HOST;
    }
    memcpy(job->head.model, s->model, sizeof s->model);
    for (int32_t i = 0; i < s->n_file; i++) {
        if (!s->file[i].pending)
            memcpy(job->known[job->n_known++], s->file[i].name, GR_DISK_NAME);
    }
    clock_gettime(CLOCK_MONOTONIC, &s->scanned);
    int rc = put(s, job);
    s->scanning = !rc;
    return rc;
}

/* ---- what was done ---- */

static void say_failed(struct gr_disk *s, const char *why)
{
    if (!s->failed)
        gr_say_warning("%s: no prefix can be saved: %s", s->path, why);
    s->failed = true;
}

/* Returns the length of the common beginning of a file's text and token [n]. */
static int32_t common(const struct gr_disk_file *f, uint64_t owner, const int32_t *token, int32_t n)
{
    int32_t i = 0;
    if (!f->token || f->owner != owner)
        return 0;
    while (i < n && i < f->n && f->token[i] == token[i])
        i++;
    return i;
}

/* Removes files whose text a file gives too. */
static void drop_beginnings(struct gr_disk *s, const struct gr_disk_file *of)
{
    const struct gr_disk_file all = *of;
    for (int32_t i = s->n_file - 1; i >= 0; i--) {
        const struct gr_disk_file *f = &s->file[i];
        if (f->token && !f->pending && f->n < all.n && f->n >= all.least &&
            common(f, all.owner, all.token, all.n) == f->n)
            drop(s, i);
    }
}

/* Takes note of a file that was written, or not. */
static void note_written(struct gr_disk *s, const struct gr_disk_job *j)
{
    int32_t i = place_of(s, j->name);
    s->n_write--, s->waiting -= j->n_state;
    s->file[i].pending = false;
    if (j->rc) {
        forget(s, i);
        say_failed(s, j->message);
    } else {
        s->stats.n_saved++;
        drop_beginnings(s, &s->file[i]);
    }
}

static void release(struct gr_disk *s, struct gr_disk_job *job)
{
    for (int i = 0; i < MOST_READS; i++)
        s->read[i] = s->read[i] == job ? NULL : s->read[i];
    gr_disk_job_free(job);
}

/* Takes note of a job that was done; false: there is none. */
static bool collect(struct gr_disk *s, bool waits)
{
    struct gr_disk_job *j = gr_disk_queue_take(s->queue, waits);
    if (!j)
        return false;
    s->n_job--;
    if (j->op == GR_DISK_READ) {
        j->done = true;
        if (j->unwanted)
            release(s, j);
        return true;
    }
    if (j->op == GR_DISK_WRITE)
        note_written(s, j);
    else if (j->op == GR_DISK_SCAN)
        (void)apply_scan(s, j);
    gr_disk_job_free(j);
    return true;
}

void gr_disk_poll(struct gr_disk *disk)
{
    struct timespec now;
    while (collect(disk, false))
        ;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!disk->scanning && now.tv_sec - disk->scanned.tv_sec >= SCAN_SECONDS)
        (void)scan(disk);
}

void gr_disk_wait(struct gr_disk *disk)
{
    while (collect(disk, true))
        ;
}

struct gr_disk_stats gr_disk_stats(const struct gr_disk *disk)
{
    return disk->stats;
}

/* ---- use ---- */

int32_t gr_disk_find(const struct gr_disk *disk, uint64_t owner, const int32_t *token, int32_t n,
                     int32_t *file)
{
    int32_t best = 0;
    *file = -1;
    for (int32_t i = 0; i < disk->n_file; i++) {
        const struct gr_disk_file *f = &disk->file[i];
        int32_t length = common(f, owner, token, n);
        if (length < f->n && length < f->least)
            continue;
        if (length > best || (length && length == best && f->n < disk->file[*file].n))
            best = length, *file = i;
    }
    return best;
}

int32_t gr_disk_length(const struct gr_disk *disk, int32_t file)
{
    return disk->file[file].n;
}

struct gr_disk_job *gr_disk_read(struct gr_disk *disk, int32_t file, bool *soon)
{
    const struct gr_disk_file *f = &disk->file[file];
    bool some = false; /* are being read */
    int free_one = -1;
    for (int i = 0; i < MOST_READS; i++) {
        if (disk->read[i] && !strcmp(disk->read[i]->name, f->name)) {
            *soon = !disk->read[i]->done;
            return NULL;
        }
        free_one = disk->read[i] ? free_one : i;
        some |= disk->read[i] && !disk->read[i]->done;
    }
    *soon = f->pending || (free_one < 0 && some);
    struct gr_disk_job *job = f->pending || free_one < 0 ? NULL : job_of(GR_DISK_READ, f->name);
    if (!job)
        return NULL;
    job->bytes = f->bytes, job->n_token = f->n;
    if (put(disk, job))
        return NULL;
    disk->read[free_one] = job;
    return job;
}

bool gr_disk_is_read(const struct gr_disk_job *job)
{
    return job->done;
}

void gr_disk_unread(struct gr_disk *disk, struct gr_disk_job **job)
{
    if (*job && (*job)->done)
        release(disk, *job);
    else if (*job)
        (*job)->unwanted = true;
    *job = NULL;
}

int gr_disk_load(struct gr_disk *disk, struct gr_disk_job **job, int32_t seq)
{
    const struct gr_disk_job *j = *job;
    const char *why = "too short";
    int rc = j->rc;
    if (!rc) {
        rc = gr_state_load(disk->session, seq, j->state, j->n_state, NULL, NULL);
        why = gr_error_message();
        rc = rc == GR_E_INVALID || rc == GR_E_UNSUPPORTED ? GR_E_CORRUPT : rc;
    }
    if (!rc && gr_kv_seq_pos_max(disk->session, seq) != j->n_token - 1) {
        gr_kv_seq_rm(disk->session, seq, -1, -1);
        rc = GR_E_CORRUPT, why = "a state of another text";
    }
    int32_t file = place_of(disk, j->name);
    if (file < disk->n_file && !disk->file[file].pending) {
        if (rc == GR_E_CORRUPT)
            drop_damaged(disk, file, why);
        else if (rc == GR_E_IO)
            forget(disk, file);
        else if (!rc)
            touch(disk, file);
    }
    disk->stats.n_loaded += !rc;
    gr_disk_unread(disk, job);
    return rc;
}

/* ---- saving ---- */

/* Returns whether a file has the text already, which counts as a use of it. */
static bool is_there(struct gr_disk *s, uint64_t owner, const int32_t *token, int32_t n)
{
    for (int32_t i = 0; i < s->n_file; i++) {
        const struct gr_disk_file *f = &s->file[i];
        if (common(f, owner, token, n) == n && (f->n == n || n >= f->least)) {
            touch(s, i);
            return true;
        }
    }
    return false;
}

/* Hands a state with its text to the thread, which frees it; GR_E_TOO_LARGE: for the folder. */
static int save(struct gr_disk *s, const struct gr_disk_head *h, const int32_t *token, void *state)
{
    struct gr_disk_file f = {
        .owner = h->owner, .n = (int32_t)h->n_token, .least = (int32_t)h->least, .pending = true};
    gr_disk_name_of(h, token, f.name);
    struct gr_disk_job *job = job_of(GR_DISK_WRITE, f.name);
    if (!job) {
        gr_state_free(state);
        return GR_E_NOMEM_HOST;
    }
    job->head = *h, job->state = state, job->n_state = h->n_state;
    f.bytes = sizeof *h + h->n_token * sizeof *token + h->n_state;
    bool fits = f.bytes <= s->most_bytes;
    int rc = fits && trim(s, f.bytes) ? 0 : GR_E_TOO_LARGE;
    s->stats.n_unsaved += fits && rc;
    f.token = rc ? NULL : malloc(h->n_token * sizeof *token);
    if (!rc)
        rc = f.token ? add(s, &f) : GR_E_NOMEM_HOST;
    if (rc) {
        free(f.token);
        gr_disk_job_free(job);
        return fits && rc == GR_E_TOO_LARGE ? 0 : rc;
    }
    memcpy(f.token, token, h->n_token * sizeof *token);
    clock_gettime(CLOCK_REALTIME, &s->file[s->n_file - 1].used);
    job->token = f.token;
    rc = put(s, job);
    if (rc)
        forget(s, s->n_file - 1);
    s->n_write += !rc, s->waiting += rc ? 0 : h->n_state;
    return rc;
}

void gr_disk_save(struct gr_disk *disk, int32_t seq, uint64_t owner, const int32_t *token,
                  int32_t n)
{
    void *state = NULL;
    size_t n_state = 0;
    gr_disk_poll(disk);
    if (n < 1 || n >= disk->too_long || is_there(disk, owner, token, n))
        return;
    if (disk->n_write == MOST_WRITES) {
        disk->stats.n_unsaved++;
        return;
    }
    int rc = gr_state_save(disk->session, seq, NULL, 0, &state, &n_state);
    if (rc) {
        say_failed(disk, gr_error_message());
        return;
    }
    if (disk->n_write && disk->waiting + n_state > MOST_WAITING) {
        gr_state_free(state);
        disk->stats.n_unsaved++;
        return;
    }
    int32_t least = disk->whole ? n : gr_kv_seq_cut_min(disk->session, seq);
    struct gr_disk_head h = {.n_token = (uint32_t)n,
                             .owner = owner,
                             .n_state = n_state,
                             .least = (uint32_t)(least < n ? least : n)};
    memcpy(h.model, disk->model, sizeof h.model);
    gr_disk_seal(&h, token);
    rc = save(disk, &h, token, state);
    if (rc == GR_E_TOO_LARGE)
        disk->too_long = n;
    else if (rc)
        say_failed(disk, gr_status_text(rc));
}

/* ---- begin and end ---- */

/* Sum of all that a state of the session depends on: of the state of a sequence without cells. */
static int model_sum(struct gr_session *session, uint8_t sum[GR_DISK_SUM])
{
    void *data;
    size_t n;
    int rc = gr_state_save(session, 0, NULL, 0, &data, &n);
    if (rc)
        return rc;
    gr_disk_sum(data, n, sum);
    gr_state_free(data);
    return 0;
}

/* Lists the folder for the first time. */
static int read_folder(struct gr_disk *s)
{
    int rc = scan(s);
    struct gr_disk_job *job = rc ? NULL : gr_disk_queue_take(s->queue, true);
    if (job) {
        s->n_job--;
        rc = apply_scan(s, job);
    }
    gr_disk_job_free(job);
    if (rc)
        gr_say_error("%s: %s", s->path, gr_status_text(rc));
    gr_disk_wait(s);
    return rc;
}

int gr_disk_open(struct gr_disk **out, const char *dir, uint64_t most_bytes,
                 struct gr_session *session, bool whole, void (*notice)(void *user), void *user)
{
    struct gr_disk *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return GR_E_NOMEM_HOST;
    *s = (struct gr_disk){.dir = -1,
                          .most_bytes = most_bytes,
                          .session = session,
                          .whole = whole,
                          .too_long = INT32_MAX,
                          .path = strdup(dir)};
    int rc = s->path ? model_sum(session, s->model) : GR_E_NOMEM_HOST;
    if (rc)
        gr_say_error("%s: %s", dir, s->path ? gr_error_message() : gr_status_text(rc));
    else
        rc = gr_disk_open_folder(dir, &s->dir);
    if (!rc) {
        rc = gr_disk_queue_new(&s->queue, s->dir, notice, user);
        if (rc)
            (void)gr_say_status(rc);
        else
            rc = read_folder(s);
    }
    if (rc)
        gr_disk_close(&s);
    *out = s;
    return rc;
}

void gr_disk_close(struct gr_disk **disk)
{
    struct gr_disk *s = *disk;
    if (!s)
        return;
    if (s->queue)
        gr_disk_wait(s);
    gr_disk_queue_free(&s->queue);
    for (int i = 0; i < MOST_READS; i++)
        gr_disk_job_free(s->read[i]);
    for (int32_t i = 0; i < s->n_file; i++)
        free(s->file[i].token);
    if (s->dir >= 0)
        close(s->dir);
    free(s->file);
    free(s->path);
    free(s);
    *disk = NULL;
}
