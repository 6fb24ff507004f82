/* POST /slots/ID?action=save, restore, erase, as llama.cpp's server has them. A thread for each
 * reads or writes the file, so that texts go on meanwhile; one after the other, since each holds
 * its file in memory. */
#include "slots.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fields.h"
#include "server.h"
#include "strengths.h"
#include "text.h"
#include "tools/cli/say.h"

enum {
    MOST_NAME = 128, /* bytes */
    MOST_JOBS = 16,  /* that wait for each other */
};
#define OF_KEY "key-" /* the beginning of files that belong to a key */

struct gr_slots {
    char *folder;
    pthread_mutex_t file; /* held by the thread that has one in memory */
    pthread_mutex_t lock;
    pthread_cond_t less;
    /* Under the lock: */
    int n_job;
    bool ended;
};

struct job {
    struct gr_exchange *x;
    struct gr_server *server;
    struct gr_slot_call call;
    float adapters[GR_MAX_ADAPTER];
    char name[MOST_NAME + 1], *path; /* as the request has it; NULL: none */
    void *data;                      /* [call.n] of the file, to be restored */
    pthread_mutex_t lock;
    pthread_cond_t ends;
    /* Under the lock: */
    bool ended;
    struct gr_slot_result result;
    char message[512];
};

int gr_slots_open(struct gr_slots **out, const char *folder)
{
    *out = NULL;
    if (!folder)
        return 0;
    int rc = gr_output_folder(folder);
    if (rc) {
        gr_say_error("--slot-save-path: %s", gr_error_message());
        return gr_status_exit(rc);
    }
    struct gr_slots *s = calloc(1, sizeof *s);
    char *copy = s ? strdup(folder) : NULL;
    if (!copy) {
        free(s);
        return gr_say_no_memory();
    }
    s->folder = copy;
    pthread_mutex_init(&s->file, NULL);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->less, NULL);
    *out = s;
    return 0;
}

void gr_slots_end(struct gr_slots *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    while (s->n_job)
        pthread_cond_wait(&s->less, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

void gr_slots_free(struct gr_slots **s)
{
    if (!*s)
        return;
    pthread_cond_destroy(&(*s)->less);
    pthread_mutex_destroy(&(*s)->lock);
    pthread_mutex_destroy(&(*s)->file);
    free((*s)->folder);
    free(*s);
    *s = NULL;
}

/* ---- files ---- */

/* Reads the file of a job. Returns the HTTP status of a failure, 0: it is there. */
static int read_file(struct job *j)
{
    int fd = open(j->path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        if (fd >= 0)
            close(fd);
        snprintf(j->message, sizeof j->message, "there is no file %s of a slot", j->name);
        return 404;
    }
    size_t n = (size_t)st.st_size, done = 0;
    j->data = malloc(n ? n : 1);
    while (j->data && done < n) {
        ssize_t k = read(fd, (char *)j->data + done, n - done);
        if (k <= 0)
            break;
        done += (size_t)k;
    }
    close(fd);
    j->call.data = j->data, j->call.n = n;
    if (j->data && done == n)
        return 0;
    snprintf(j->message, sizeof j->message, "%s",
             j->data ? "the file cannot be read" : gr_status_text(GR_E_NOMEM_HOST));
    return j->data ? 500 : 503;
}

/* Writes what was saved. Returns the HTTP status of a failure, 0: none. */
static int write_file(struct job *j)
{
    struct gr_output *o = NULL;
    int rc = gr_output_open(&o, j->path, GR_OUTPUT_PRIVATE);
    if (!rc)
        rc = gr_output_put(o, j->result.data, j->result.n);
    if (!rc)
        rc = gr_output_commit(&o);
    if (rc) {
        gr_say_warning("%s: a slot cannot be saved: %s", j->path, gr_error_message());
        snprintf(j->message, sizeof j->message, "the file cannot be written: %s",
                 gr_status_text(rc));
    }
    gr_output_abort(&o);
    return rc ? 500 : 0;
}

/* ---- the thread of a job ---- */

static void on_done(const struct gr_slot_result *r, void *user)
{
    struct job *j = user;
    pthread_mutex_lock(&j->lock);
    j->result = *r;
    snprintf(j->message, sizeof j->message, "%s", r->message ? r->message : "");
    j->ended = true;
    pthread_cond_signal(&j->ends);
    pthread_mutex_unlock(&j->lock);
}

static int http_status(int status)
{
    return status == GR_E_INVALID || status == GR_E_UNSUPPORTED || status == GR_E_CORRUPT ? 400
           : status == GR_E_KV_FULL                                                       ? 429
           : status == GR_E_CANCELLED || status == GR_E_NOMEM_HOST || status == GR_E_NOMEM_DEV ||
                   status == GR_E_DEVICE || status == GR_E_PEER_LOST
               ? 503
               : 500;
}

/* Has the scheduler do its part. Returns the HTTP status of a failure, 0: none. */
static int ask_scheduler(struct job *j)
{
    j->call.done = on_done, j->call.user = j;
    int rc = gr_scheduler_slot(j->server->scheduler, &j->call);
    if (rc) {
        snprintf(j->message, sizeof j->message, "%s",
                 rc == GR_E_CANCELLED ? "the server is shutting down" : gr_status_text(rc));
        return http_status(rc);
    }
    pthread_mutex_lock(&j->lock);
    while (!j->ended)
        pthread_cond_wait(&j->ends, &j->lock);
    pthread_mutex_unlock(&j->lock);
    return j->result.status ? http_status(j->result.status) : 0;
}

static json_t *answer_to(const struct job *j, double ms)
{
    int slot = j->call.slot - 1;
    switch (j->call.op) {
    case GR_SLOT_SAVE:
        return json_pack("{s:i, s:s, s:i, s:I, s:{s:f}}", "id_slot", slot, "filename", j->name,
                         "n_saved", j->result.n_token, "n_written", (json_int_t)j->result.n,
                         "timings", "save_ms", ms);
    case GR_SLOT_RESTORE:
        return json_pack("{s:i, s:s, s:i, s:I, s:{s:f}}", "id_slot", slot, "filename", j->name,
                         "n_restored", j->result.n_token, "n_read", (json_int_t)j->call.n,
                         "timings", "restore_ms", ms);
    default:
        return json_pack("{s:i, s:i}", "id_slot", slot, "n_erased", j->result.n_token);
    }
}

static void free_job(struct job *j)
{
    gr_state_free(j->result.data);
    pthread_cond_destroy(&j->ends);
    pthread_mutex_destroy(&j->lock);
    free(j->data);
    free(j->path);
    free(j);
}

static void *run_job(void *user)
{
    struct job *j = user;
    struct gr_slots *s = j->server->slots;
    pthread_mutex_lock(&s->file);
    int64_t begin = gr_serve_now();
    int status = j->call.op == GR_SLOT_RESTORE ? read_file(j) : 0;
    if (!status)
        status = ask_scheduler(j);
    if (!status && j->call.op == GR_SLOT_SAVE)
        status = write_file(j);
    pthread_mutex_unlock(&s->file);
    if (status)
        gr_refuse(j->x, status, status == 404 || j->data ? "filename" : NULL, "%s", j->message);
    else
        gr_answer_json(j->x, 200, answer_to(j, (double)(gr_serve_now() - begin) / 1e6));
    free_job(j);
    pthread_mutex_lock(&s->lock);
    s->n_job--;
    pthread_cond_signal(&s->less);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Counts a job, and begins it. Returns a status: GR_E_CANCELLED, GR_E_TOO_LARGE (too many), or
 * GR_E_NOMEM_HOST. */
static int begin_job(struct gr_slots *s, struct job *j)
{
    pthread_t thread;
    pthread_mutex_lock(&s->lock);
    int rc = s->ended ? GR_E_CANCELLED : s->n_job >= MOST_JOBS ? GR_E_TOO_LARGE : 0;
    if (!rc && pthread_create(&thread, NULL, run_job, j))
        rc = GR_E_NOMEM_HOST;
    s->n_job += !rc;
    pthread_mutex_unlock(&s->lock);
    if (!rc)
        pthread_detach(thread);
    return rc;
}

/* ---- requests ---- */

/* Returns whether a name is that of a file in the folder that requests may have. */
static bool is_name(const char *name)
{
    size_t n = name ? strlen(name) : 0;
    if (!n || n > MOST_NAME || *name == '.' || strstr(name, "..") || strchr(name, '/') ||
        !strncmp(name, OF_KEY, sizeof OF_KEY - 1))
        return false;
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return false;
    }
    return true;
}

/* Returns the path of a file (free), which is another one for each key; NULL: no memory. */
static char *path_of(const struct gr_slots *s, uint64_t owner, const char *name)
{
    char *path, key[40] = "";
    if (owner)
        snprintf(key, sizeof key, OF_KEY "%016llx-", (unsigned long long)owner);
    return asprintf(&path, "%s/%s%s", s->folder, key, name) < 0 ? NULL : path;
}

/* Reads the name of the file into a job. */
static bool read_name(struct gr_exchange *x, struct job *j)
{
    json_t *body = gr_read_object(x);
    struct gr_fields f = {.object = body};
    if (!body)
        return false;
    const char *name = gr_field_text(&f, "filename");
    if (!is_name(name) || strlen(name) != json_string_length(gr_field(&f, "filename")))
        gr_field_wrong(&f, "filename",
                       "filename: the name of a file without a folder is expected, at most %d "
                       "bytes, which does not begin with a point or " OF_KEY,
                       MOST_NAME);
    else
        strcpy(j->name, name);
    gr_strengths_read(j->server->strengths, &f, j->adapters);
    json_decref(body);
    return !gr_fields_refuse(&f, x);
}

/* Reads what is to be done with which slot; false: refused. */
static bool read_call(struct gr_exchange *x, const struct gr_server *s, struct gr_slot_call *call)
{
    static const char *const names[] = {
        [GR_SLOT_SAVE] = "save", [GR_SLOT_RESTORE] = "restore", [GR_SLOT_ERASE] = "erase"};
    const char *action = gr_exchange_query(x, "action"), *id = gr_exchange_rest(x);
    size_t n = strspn(id, "0123456789");
    int op = 0;
    long slot = n && n < 6 && !id[n] ? strtol(id, NULL, 10) : -1;
    while (op <= GR_SLOT_ERASE && (!action || strcmp(action, names[op]) != 0))
        op++;
    if (slot < 0 || slot >= s->n_parallel)
        gr_refuse(x, 404, NULL, "there is no such slot: they are 0 to %d", s->n_parallel - 1);
    else if (op > GR_SLOT_ERASE)
        gr_refuse(x, 400, "action", "action: save, restore or erase is expected");
    else
        *call = (struct gr_slot_call){
            .op = (enum gr_slot_op)op, .owner = gr_exchange_owner(x), .slot = (int32_t)slot + 1};
    return slot >= 0 && slot < s->n_parallel && op <= GR_SLOT_ERASE;
}

void gr_serve_slot(struct gr_exchange *x, void *user)
{
    struct gr_server *s = user;
    struct gr_slot_call call;
    if (!s->slots || !s->scheduler) {
        gr_refuse(x, 501, NULL, "%s",
                  s->slots ? "the model generates no texts"
                           : "slots are saved with --slot-save-path alone");
        return;
    }
    if (!read_call(x, s, &call))
        return;
    struct job *j = calloc(1, sizeof *j);
    if (!j) {
        gr_refuse(x, 503, NULL, "%s", gr_status_text(GR_E_NOMEM_HOST));
        return;
    }
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->ends, NULL);
    j->x = x, j->server = s, j->call = call;
    j->call.adapters = j->adapters;
    if (call.op != GR_SLOT_ERASE && !read_name(x, j)) {
        free_job(j);
        return;
    }
    j->path = path_of(s->slots, call.owner, j->name);
    gr_exchange_keep(x, NULL, NULL);
    int rc = j->path ? begin_job(s->slots, j) : GR_E_NOMEM_HOST;
    if (!rc)
        return;
    gr_refuse(x, rc == GR_E_TOO_LARGE ? 429 : 503, NULL, "%s",
              rc == GR_E_TOO_LARGE   ? "too many slots are being saved: try again later"
              : rc == GR_E_CANCELLED ? "the server is shutting down"
                                     : "out of memory");
    free_job(j);
}
