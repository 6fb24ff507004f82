#include "fetch.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "digest.h"
#include "http.h"
#include "part.h"
#include "tools/cli/flags.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/numbers.h"
#include "tools/cli/progress.h"
#include "tools/cli/say.h"

#define STARTS 3 /* from the first byte, when what is there turns out to be of no use */

/* Version and origin of a file: ETag or date of its last change, and the URL without secrets. */
struct record {
    char version[256], url[1024];
};

struct fetch {
    const struct gr_fetch *f;
    struct gr_http_get get;
    struct gr_part part;
    struct record record; /* of the part; unused with an oid */
    int64_t size;         /* bytes of the whole; -1: not known yet */
    char oid[GR_OID_MAX]; /* "": unknown */
    bool resumed;         /* a part of it is from an earlier attempt or process */
    bool useless;         /* what is there is no part of what is to come */
    bool judged;          /* whether it begins as a GGUF file does has been looked at */
    int rc;               /* of begin and data */
};

/* ---- records ---- */

static bool record_path(char path[GR_PATH_MAX], const char *of, const char *more)
{
    return snprintf(path, GR_PATH_MAX, "%s%s.etag", of, more) < GR_PATH_MAX;
}

static struct record read_record(const char *of, const char *more)
{
    struct record r = {.version = ""};
    char path[GR_PATH_MAX];
    FILE *in = record_path(path, of, more) ? fopen(path, "r") : NULL;
    if (in && !fgets(r.version, sizeof r.version, in))
        *r.version = 0;
    if (in && *r.version && !fgets(r.url, sizeof r.url, in))
        *r.url = 0;
    if (in)
        fclose(in);
    r.version[strcspn(r.version, "\r\n")] = r.url[strcspn(r.url, "\r\n")] = 0;
    return r;
}

static int write_record(const char *of, const struct record *r)
{
    char path[GR_PATH_MAX];
    struct gr_output *out = NULL;
    if (!record_path(path, of, ".part"))
        return 0;
    int status = gr_output_open(&out, path, 0);
    if (!status)
        status = gr_output_put(out, r->version, strlen(r->version));
    if (!status)
        status = gr_output_put(out, "\n", 1);
    if (!status)
        status = gr_output_put(out, r->url, strlen(r->url));
    if (!status)
        status = gr_output_put(out, "\n", 1);
    if (!status)
        status = gr_output_commit(&out);
    gr_output_abort(&out);
    return status ? gr_say_status(status) : 0;
}

/* Makes the record of the part that of the file. */
static void move_record(const char *of)
{
    char from[GR_PATH_MAX], to[GR_PATH_MAX];
    if (record_path(from, of, ".part") && record_path(to, of, ""))
        (void)rename(from, to);
}

/* Moves a record that was left by a process that was killed after its part became the file. */
static void move_left_record(const char *of)
{
    char part[GR_PATH_MAX];
    if (snprintf(part, sizeof part, "%s.part", of) < GR_PATH_MAX && access(part, F_OK) != 0)
        move_record(of);
}

/* Reads the record of a part; "" where the part is of another URL. */
static struct record read_part_record(const struct gr_fetch *f)
{
    struct record r = read_record(f->path, ".part");
    char shown[sizeof r.url];
    if (strcmp(r.url, gr_http_shown(f->url, shown, sizeof shown)) != 0)
        *r.version = 0;
    return r;
}

static struct record record_of(const struct gr_http_reply *reply, const char *url)
{
    struct record r;
    snprintf(r.version, sizeof r.version, "%s", *reply->etag ? reply->etag : reply->modified);
    gr_http_shown(url, r.url, sizeof r.url);
    return r;
}

static bool is_etag(const char *version)
{
    return *version == '"' || !strncmp(version, "W/", 2);
}

/* Returns whether bytes of the same version are the same; weak ETags do not promise that. */
static bool is_exact(const char *version)
{
    return *version && strncmp(version, "W/", 2) != 0;
}

enum gr_fetched gr_fetched_from(const char *path, const char *url, char *from, int n)
{
    char shown[1024];
    move_left_record(path);
    struct record r = read_record(path, "");
    snprintf(from, (size_t)n, "%s", r.url);
    if (!*r.url)
        return *r.version ? GR_FETCHED_HERE : GR_FETCHED_UNKNOWN;
    gr_http_shown(url, shown, sizeof shown);
    return strcmp(r.url, shown) ? GR_FETCHED_ELSEWHERE : GR_FETCHED_HERE;
}

/* Removes the part, its record first: a record without a part is that of a complete file. */
static void drop(struct fetch *s)
{
    char path[GR_PATH_MAX];
    if (s->part.fd >= 0 && record_path(path, s->f->path, ".part"))
        (void)unlink(path);
    gr_part_remove(&s->part);
}

/* ---- a response ---- */

/* Ends the fetch with an error. */
static bool fail(struct fetch *s, int rc)
{
    s->rc = rc;
    return false;
}

static bool start_anew(struct fetch *s)
{
    s->useless = true;
    return false;
}

static bool begin_whole(struct fetch *s, const struct gr_http_reply *r)
{
    s->size = s->f->size >= 0 ? s->f->size : r->length;
    if (s->size < 0) {
        gr_say_error("%s: the server does not say how long it is", s->f->name);
        return fail(s, gr_status_exit(GR_E_IO));
    }
    if (r->length >= 0 && r->length != s->size) {
        gr_say_error("%s: the server says that it has %lld bytes, and %lld are expected",
                     s->f->name, (long long)r->length, (long long)s->size);
        return fail(s, gr_status_exit(GR_E_IO));
    }
    s->resumed = false;
    int rc = s->part.n ? gr_part_empty(&s->part) : 0;
    s->record = record_of(r, s->f->url);
    if (!rc && !s->f->oid)
        rc = write_record(s->f->path, &s->record);
    return rc ? fail(s, rc) : true;
}

static bool begin_rest(struct fetch *s, const struct gr_http_reply *r)
{
    struct record now = record_of(r, s->f->url);
    bool other = !s->f->oid && *now.version && strcmp(now.version, s->record.version) != 0;
    if (r->from != (int64_t)s->part.n || r->total < (int64_t)s->part.n || other ||
        (s->size >= 0 && r->total != s->size))
        return start_anew(s);
    s->size = r->total;
    s->resumed = true;
    return true;
}

static bool begin(struct gr_http_get *get, const struct gr_http_reply *r)
{
    struct fetch *s = get->user;
    bool partial = r->status == 206 && get->from;
    if (!(partial ? begin_rest(s, r) : begin_whole(s, r)))
        return false;
    uint64_t more = (uint64_t)s->size - s->part.n;
    int rc = gr_part_room(&s->part, more + (uint64_t)s->f->later);
    if (rc)
        return fail(s, rc);
    get->expected = (int64_t)more;
    s->judged = s->part.n > 0;
    gr_bar_begin(s->f->title, (double)s->size, GR_BAR_BYTES);
    gr_bar_skip((double)s->part.n);
    return true;
}

/* Refuses what is no GGUF file as soon as its first bytes are there: a page to log in, for
 * example. */
static bool begins_well(struct fetch *s)
{
    char head[4];
    if (s->judged || s->part.n < sizeof head)
        return true;
    s->judged = true;
    if (pread(s->part.fd, head, sizeof head, 0) != sizeof head || !memcmp(head, "GGUF", 4))
        return true;
    for (size_t i = 0; i < sizeof head; i++)
        head[i] = head[i] >= ' ' && head[i] <= '~' ? head[i] : '.';
    gr_say_error("%s: no GGUF file: expected 'GGUF', found '%.4s'; check the address", s->f->name,
                 head);
    drop(s);
    return fail(s, gr_status_exit(GR_E_CORRUPT));
}

/* Sets what the next request asks for: the rest, where that is sure to be of the same version. */
static void go_on_from(struct fetch *s)
{
    bool named = s->f->oid != NULL;
    s->get.from = named || is_exact(s->record.version) ? s->part.n : 0;
    s->get.if_range = named ? "" : s->record.version;
}

static bool data(struct gr_http_get *get, const void *p, size_t n)
{
    struct fetch *s = get->user;
    if ((int64_t)n > get->expected) {
        gr_say_error("%s: the server sends more than the %lld bytes that it announced", s->f->name,
                     (long long)s->size);
        return fail(s, gr_status_exit(GR_E_IO));
    }
    int rc = gr_part_add(&s->part, p, n);
    if (rc)
        return fail(s, rc);
    get->expected -= (int64_t)n;
    go_on_from(s);
    gr_bar_add((double)n);
    return begins_well(s);
}

/* ---- the transfer ---- */

static int stopped(const struct fetch *s)
{
    char n[16], size[16];
    if (s->size > 0)
        gr_say("download: interrupted after %s of %s; the same command goes on from there",
               gr_amount(n, (double)s->part.n, 1024), gr_amount(size, (double)s->size, 1024));
    return GR_EXIT_INTERRUPTED;
}

/* Judges a response that is complete or was ended by begin or data. */
static int answered(struct fetch *s)
{
    const struct gr_http_reply *r = &s->get.reply;
    if (s->rc || s->useless)
        return s->rc;
    if (*r->linked_etag == '"' && !s->f->oid)
        snprintf(s->oid, sizeof s->oid, "%.*s", (int)strcspn(r->linked_etag + 1, "\""),
                 r->linked_etag + 1);
    if (r->status == 416 && s->get.from) {
        s->resumed = true;
        s->useless = r->total != (int64_t)s->part.n || (s->size >= 0 && s->size != r->total);
        s->size = r->total;
        return 0;
    }
    if (r->status == 200 || r->status == 206)
        return 0;
    char why[GR_WHY_MAX];
    int rc = gr_http_refused(s->f->name, r, why);
    gr_say_error("%s", why);
    return rc;
}

static int transfer(struct gr_http *http, struct fetch *s)
{
    s->get = (struct gr_http_get){
        .url = s->f->url, .patient = true, .begin = begin, .data = data, .user = s};
    go_on_from(s);
    enum gr_http_end end = gr_http_get(http, &s->get);
    gr_bar_end();
    if (end == GR_HTTP_STOPPED)
        return stopped(s);
    if (end == GR_HTTP_ANSWERED)
        return answered(s);
    gr_say_error("%s: %s%s", s->f->name, s->get.why,
                 s->part.n ? "; what came so far stays: the same command goes on" : "");
    return gr_status_exit(GR_E_IO);
}

/* Compares the complete part with the name of its content. */
static int check(struct fetch *s)
{
    char found[GR_OID_MAX];
    if (!gr_oid_is_known(s->oid))
        return 0;
    int rc = gr_oid_of(s->part.fd, s->part.path, s->part.n, s->oid, found);
    if (rc || !strcmp(found, s->oid))
        return rc;
    if (s->resumed)
        return (void)start_anew(s), 0;
    gr_say_error("%s: its digest is %s, and %s is expected: it was removed; try again", s->f->name,
                 found, s->oid);
    drop(s);
    return gr_status_exit(GR_E_IO);
}

/* Brings the part to its full size and checks it; s->useless: it must begin anew. */
static int bring(struct gr_http *http, struct fetch *s)
{
    int rc = 0;
    s->useless = s->size >= 0 && (int64_t)s->part.n > s->size;
    if (!s->useless && (int64_t)s->part.n != s->size)
        rc = transfer(http, s);
    else
        s->resumed = true;
    return rc || s->useless ? rc : check(s);
}

static int bring_all(struct gr_http *http, struct fetch *s)
{
    for (int i = 0; i < STARTS; i++) {
        int rc = bring(http, s);
        if (rc || !s->useless)
            return rc;
        s->size = s->f->size;
        *s->record.version = 0;
        if ((rc = gr_part_empty(&s->part)))
            return rc;
        gr_say("download: %s begins anew: what was there is of another version", s->f->name);
    }
    gr_say_error("%s: the server sends something else each time", s->f->name);
    return gr_status_exit(GR_E_IO);
}

/* Returns whether another process has completed the file while this one waited. */
static bool has_arrived(struct gr_http *http, const struct fetch *s)
{
    struct stat st;
    bool current = false;
    if ((s->f->replaces && !s->part.waited) || stat(s->f->path, &st) || !S_ISREG(st.st_mode))
        return false;
    if (s->f->oid)
        return st.st_size == s->f->size;
    return s->part.waited && !gr_fetch_ask(http, s->f, &current) && current;
}

int gr_fetch(struct gr_http *http, const struct gr_fetch *f)
{
    struct fetch s = {.f = f, .size = f->size};
    int rc = gr_part_open(&s.part, f->path);
    if (!rc && has_arrived(http, &s)) {
        drop(&s);
        return 0;
    }
    snprintf(s.oid, sizeof s.oid, "%s", f->oid ? f->oid : "");
    s.record = read_part_record(f);
    if (!rc)
        rc = bring_all(http, &s);
    if (rc && !s.part.n)
        drop(&s);
    if (!rc)
        rc = gr_part_commit(&s.part, f->path);
    if (!rc && !f->oid)
        move_record(f->path); /* whoever makes a new part now has yet to get an answer */
    gr_part_close(&s.part);
    return rc;
}

/* ---- a file that exists ---- */

struct question {
    const char *path, *url;
    struct record record;
    bool current;
};

static bool compare(struct gr_http_get *get, const struct gr_http_reply *reply)
{
    struct question *q = get->user;
    struct record now = record_of(reply, q->url);
    struct stat st;
    if (*now.version)
        q->current = !strcmp(now.version, q->record.version);
    else
        q->current = !stat(q->path, &st) && st.st_size == reply->length;
    return false;
}

int gr_fetch_ask(struct gr_http *http, const struct gr_fetch *f, bool *current)
{
    struct question q = {.path = f->path, .url = f->url, .record = read_record(f->path, "")};
    struct gr_http_get get = {.url = f->url, .small = true, .begin = compare, .user = &q};
    get.if_none_match = is_etag(q.record.version) ? q.record.version : NULL;
    enum gr_http_end end = gr_http_get(http, &get);
    int status = get.reply.status;
    if (end == GR_HTTP_STOPPED)
        return GR_EXIT_INTERRUPTED;
    *current = true;
    if (end == GR_HTTP_FAILED)
        gr_say_warning("%s: %s; the copy in %s is used", f->name, get.why, f->path);
    else if (status == 200 || status == 206)
        *current = q.current;
    else if (status != 304)
        gr_say_warning("%s: HTTP %d; the copy in %s is used", f->name, status, f->path);
    return 0;
}
