#include "http.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "curl.h"
#include "tools/cli/flags.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/numbers.h"
#include "tools/cli/say.h"

#define CONNECT_S 15
#define STALL_S 30       /* with fewer than STALL_BYTES a second a response is given up */
#define STALL_BYTES 1000 /* a second */
#define SMALL_S 120      /* for a small response as a whole */
#define ATTEMPTS 6       /* without FRESH_BYTES of a body in between */
#define FIRST_ATTEMPTS 2 /* while no server has answered yet */
#define FRESH_BYTES (1 << 20)
#define WAIT_S 1 /* before the second attempt; each further wait is twice as long */
#define LONGEST_WAIT_S 120
#define REDIRECTS 10
#define ERROR_BYTES 4096        /* of the body of an error that are read */
#define SKIPPED_BYTES (1 << 20) /* of a body that is not wanted, at most */

struct gr_http {
    const struct gr_curl *curl;
    CURL *easy;
    const char *token;
    char origin[512]; /* where it is sent */
    bool reached;     /* a server has answered */
};

/* One request and its response. */
struct attempt {
    struct gr_http *http;
    struct gr_http_get *get;
    bool begun;
    int64_t got; /* bytes of the body */
    int64_t retry_after;
    char error[ERROR_BYTES], transport[CURL_ERROR_SIZE];
    size_t n_error;
};

enum turn { ANSWERED, REDIRECTED, AGAIN, NEVER, STOPPED };

static double wait_factor = 1, limit_factor = 1;

void gr_http_hurry(double waits, double limits)
{
    wait_factor = 1 / waits;
    limit_factor = 1 / limits;
}

/* ---- URLs ---- */

const char *gr_http_shown(const char *url, char *buf, size_t n)
{
    const char *host = strstr(url, "://");
    host = host ? host + 3 : url;
    size_t n_host = strcspn(host, "/?#"), n_path = strcspn(host + n_host, "?#");
    const char *user = memrchr(host, '@', n_host);
    const char *shown = user ? user + 1 : host;
    snprintf(buf, n, "%.*s%.*s", (int)(host - url), url, (int)(host + n_host + n_path - shown),
             shown);
    return buf;
}

/* Stores "scheme://host:port". NULL, or what is wrong with the URL. */
static const char *origin_of(const struct gr_curl *curl, const char *url, char *origin, size_t n)
{
    char *scheme = NULL, *host = NULL, *port = NULL;
    CURLU *u = curl->url();
    const char *wrong = NULL;
    if (!u)
        wrong = "there is no memory for it";
    else if (strlen(url) >= GR_URL_MAX ||
             curl->url_set(u, CURLUPART_URL, url, CURLU_NON_SUPPORT_SCHEME) ||
             curl->url_get(u, CURLUPART_SCHEME, &scheme, 0))
        wrong = "it is no URL";
    else if (strcasecmp(scheme, "https") != 0 && strcasecmp(scheme, "http") != 0)
        wrong = "https:// or http:// is expected";
    else if (curl->url_get(u, CURLUPART_HOST, &host, 0) ||
             curl->url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT))
        wrong = "it names no host";
    else if (snprintf(origin, n, "%s://%s:%s", scheme, host, port) >= (int)n)
        wrong = "its host is too long";
    curl->free(scheme);
    curl->free(host);
    curl->free(port);
    curl->url_cleanup(u);
    return wrong;
}

const char *gr_http_check_url(struct gr_http *http, const char *url)
{
    char origin[512];
    return origin_of(http->curl, url, origin, sizeof origin);
}

const char *gr_http_check_step(struct gr_http *http, const char *from, const char *to)
{
    const char *wrong = gr_http_check_url(http, to);
    if (!wrong && !strncasecmp(from, "https:", 6) && strncasecmp(to, "https:", 6) != 0)
        wrong = "it leads from https to http";
    return wrong;
}

/* ---- headers ---- */

/* Finds the value of a header line with this name; *n bytes, without blanks around it. */
static const char *value_of(const char *line, size_t n_line, const char *name, size_t *n)
{
    size_t n_name = strlen(name);
    if (n_line <= n_name || strncasecmp(line, name, n_name) != 0 || line[n_name] != ':')
        return NULL;
    const char *p = line + n_name + 1, *end = line + n_line;
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    while (end > p && strchr(" \t\r\n", end[-1]))
        end--;
    *n = (size_t)(end - p);
    return p;
}

/* Copies what is short enough and printable; anything else is as if it were not there. */
static void keep(char *to, size_t room, const char *p, size_t n)
{
    size_t i = 0;
    while (i < n && p[i] >= ' ' && p[i] <= '~')
        i++;
    if (i == n && n < room) {
        memcpy(to, p, n);
        to[n] = 0;
    }
}

static void keep_header(char *to, size_t room, const char *line, size_t n_line, const char *name)
{
    size_t n;
    const char *p = value_of(line, n_line, name, &n);
    if (p)
        keep(to, room, p, n);
}

/* Parses a decimal number; -1: it is none. */
static int64_t number(const char *text)
{
    char *end;
    long long x = strtoll(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && x < INT64_MAX ? x : -1;
}

/* "bytes 100-199/1000", or of status 416 "bytes * /1000" without the blank. */
static void read_range(struct gr_http_reply *r, const char *text)
{
    const char *slash = strchr(text, '/');
    char *end;
    if (strncasecmp(text, "bytes ", 6) != 0 || !slash)
        return;
    long long from = strtoll(text + 6, &end, 10);
    r->from = text[6] >= '0' && text[6] <= '9' && *end == '-' && from < INT64_MAX ? from : -1;
    r->total = number(slash + 1);
}

/* "<URL>; rel=\"next\"" */
static void read_link(struct gr_http_reply *r, const char *text)
{
    const char *end = strchr(text, '>');
    if (*text == '<' && end && strstr(end, "rel=\"next\""))
        keep(r->next, sizeof r->next, text + 1, (size_t)(end - text - 1));
}

static void forget(struct attempt *a, const char *status_line, size_t n)
{
    struct gr_http_reply *r = &a->get->reply;
    char linked[sizeof r->linked_etag];
    memcpy(linked, r->linked_etag, sizeof linked);
    *r = (struct gr_http_reply){.length = -1, .from = -1, .total = -1};
    memcpy(r->linked_etag, linked, sizeof linked);
    a->retry_after = 0;
    const char *blank = memchr(status_line, ' ', n);
    for (const char *p = blank ? blank + 1 : NULL;
         p && p < status_line + n && *p >= '0' && *p <= '9' && r->status < 1000; p++)
        r->status = r->status * 10 + (*p - '0');
}

static size_t on_header(char *line, size_t size, size_t n, void *user)
{
    struct attempt *a = user;
    struct gr_http_reply *r = &a->get->reply;
    char text[2048] = "";
    n *= size;
    if (n > 5 && !memcmp(line, "HTTP/", 5)) {
        forget(a, line, n);
        return n;
    }
    keep_header(r->etag, sizeof r->etag, line, n, "ETag");
    keep_header(r->modified, sizeof r->modified, line, n, "Last-Modified");
    keep_header(r->linked_etag, sizeof r->linked_etag, line, n, "X-Linked-Etag");
    keep_header(r->error, sizeof r->error, line, n, "X-Error-Message");
    keep_header(text, sizeof text, line, n, "Content-Length");
    if (*text)
        r->length = number(text), *text = 0;
    keep_header(text, sizeof text, line, n, "Retry-After");
    if (*text)
        a->retry_after = number(text), *text = 0;
    keep_header(text, sizeof text, line, n, "Content-Range");
    if (*text)
        read_range(r, text), *text = 0;
    keep_header(text, sizeof text, line, n, "Link");
    if (*text)
        read_link(r, text);
    return n;
}

/* ---- bodies ---- */

static bool is_wanted(const struct gr_http_get *get)
{
    return get->reply.status == 200 || get->reply.status == 206;
}

static bool begin(struct attempt *a)
{
    if (!a->begun) {
        a->begun = true;
        a->get->expected = -1;
        a->get->ended = !a->get->begin(a->get, &a->get->reply);
    }
    return !a->get->ended;
}

static size_t on_body(char *p, size_t size, size_t n, void *user)
{
    struct attempt *a = user;
    n *= size;
    a->got += (int64_t)n;
    if (is_wanted(a->get)) {
        if (!begin(a))
            return 0;
        a->get->ended = !a->get->data(a->get, p, n);
        return a->get->ended ? 0 : n;
    }
    size_t room = sizeof a->error - 1 - a->n_error;
    memcpy(a->error + a->n_error, p, n < room ? n : room);
    a->n_error += n < room ? n : room;
    return a->got > SKIPPED_BYTES ? 0 : n;
}

static int on_progress(void *user, curl_off_t dl, curl_off_t dn, curl_off_t ul, curl_off_t un)
{
    (void)user, (void)dl, (void)dn, (void)ul, (void)un;
    return gr_interrupted();
}

/* The hub's errors are {"error": "text"}, or in a header; other bodies say nothing to a reader of
 * one line. */
static void read_error(struct attempt *a)
{
    json_t *body = json_loadb(a->error, a->n_error, 0, NULL);
    const char *text = json_string_value(json_object_get(body, "error"));
    char *to = a->get->reply.error;
    size_t n = 0;
    if (!text) {
        json_decref(body);
        return;
    }
    for (; *text && n + 1 < sizeof a->get->reply.error; text++)
        if (*text >= ' ' && *text <= '~')
            to[n++] = *text;
    to[n] = 0;
    json_decref(body);
}

/* ---- one request ---- */

static bool add_header(const struct gr_curl *curl, struct curl_slist **list, const char *name,
                       const char *value)
{
    char line[1400];
    if (!value || !*value)
        return true;
    if (snprintf(line, sizeof line, "%s: %s", name, value) >= (int)sizeof line)
        return false;
    struct curl_slist *more = curl->slist_append(*list, line);
    *list = more ? more : *list;
    return more != NULL;
}

static bool add_headers(const struct attempt *a, const char *url, struct curl_slist **list)
{
    const struct gr_http *h = a->http;
    const struct gr_http_get *g = a->get;
    char origin[512], bearer[1200];
    snprintf(bearer, sizeof bearer, "Bearer %s", h->token ? h->token : "");
    bool trusted = h->token && !origin_of(h->curl, url, origin, sizeof origin) &&
                   !strcasecmp(origin, h->origin);
    return add_header(h->curl, list, "Accept-Encoding", "identity") &&
           add_header(h->curl, list, "Authorization", trusted ? bearer : NULL) &&
           add_header(h->curl, list, "If-Range", g->from ? g->if_range : NULL) &&
           add_header(h->curl, list, "If-None-Match", g->if_none_match);
}

static void set_options(struct attempt *a, const char *url, const struct curl_slist *headers)
{
    const struct gr_curl *c = a->http->curl;
    CURL *e = a->http->easy;
    const char *authorities = getenv("SSL_CERT_FILE");
    char range[32];
    long stall = (long)(STALL_S * limit_factor);
    snprintf(range, sizeof range, "%llu-", (unsigned long long)a->get->from);
    c->easy_reset(e);
    c->easy_setopt(e, CURLOPT_URL, url);
#if LIBCURL_VERSION_NUM >= 0x075500
    c->easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    c->easy_setopt(e, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    c->easy_setopt(e, CURLOPT_HTTPHEADER, headers);
    c->easy_setopt(e, CURLOPT_USERAGENT, "gpurun/" GR_VERSION);
    c->easy_setopt(e, CURLOPT_RANGE, a->get->from ? range : NULL);
    c->easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    c->easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L);
    c->easy_setopt(e, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    c->easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, (long)(1000 * CONNECT_S * limit_factor));
    c->easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, (long)STALL_BYTES);
    c->easy_setopt(e, CURLOPT_LOW_SPEED_TIME, stall > 1 ? stall : 1L);
    c->easy_setopt(e, CURLOPT_TIMEOUT_MS,
                   a->get->small ? (long)(1000 * SMALL_S * limit_factor) : 0L);
    c->easy_setopt(e, CURLOPT_BUFFERSIZE, 256L << 10);
    c->easy_setopt(e, CURLOPT_ERRORBUFFER, a->transport);
    c->easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header);
    c->easy_setopt(e, CURLOPT_HEADERDATA, a);
    c->easy_setopt(e, CURLOPT_WRITEFUNCTION, on_body);
    c->easy_setopt(e, CURLOPT_WRITEDATA, a);
    c->easy_setopt(e, CURLOPT_NOPROGRESS, 0L);
    c->easy_setopt(e, CURLOPT_XFERINFOFUNCTION, on_progress);
    if (authorities && *authorities)
        c->easy_setopt(e, CURLOPT_CAINFO, authorities);
}

static enum turn never(struct attempt *a, const char *why)
{
    snprintf(a->get->why, sizeof a->get->why, "%s", why);
    return NEVER;
}

static enum turn again(struct attempt *a, const char *why)
{
    snprintf(a->get->why, sizeof a->get->why, "%s", why);
    return AGAIN;
}

/* Judges a request that libcurl did not complete. */
static enum turn broken(struct attempt *a, CURLcode code)
{
    const char *text = *a->transport ? a->transport : a->http->curl->easy_strerror(code);
    char why[400];
    switch (code) {
    case CURLE_ABORTED_BY_CALLBACK:
        return STOPPED;
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
        return again(a, text);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        snprintf(why, sizeof why,
                 "%s; trusted authorities come with the package ca-certificates, or in the file "
                 "that the variable SSL_CERT_FILE names",
                 text);
        return never(a, why);
    default:
        return never(a, text);
    }
}

/* Checks where a redirect leads and stores it in url. */
static enum turn redirect(struct attempt *a, char url[GR_URL_MAX])
{
    char *to = NULL, why[200];
    a->http->curl->easy_getinfo(a->http->easy, CURLINFO_REDIRECT_URL, &to);
    const char *wrong = to ? gr_http_check_step(a->http, url, to) : "it does not say where to";
    if (wrong) {
        snprintf(why, sizeof why, "a redirect is not followed: %s", wrong);
        return never(a, why);
    }
    snprintf(url, GR_URL_MAX, "%s", to);
    return REDIRECTED;
}

/* Judges a response by its status. */
static enum turn judge(struct attempt *a, char url[GR_URL_MAX])
{
    const struct gr_http_get *g = a->get;
    char why[400];
    int s = g->reply.status;
    if (s == 301 || s == 302 || s == 303 || s == 307 || s == 308)
        return redirect(a, url);
    if (s >= 400)
        read_error(a);
    if (s == 408 || s == 425 || s == 429 || s >= 500) {
        snprintf(why, sizeof why, "the server answers with HTTP %d%s%s", s,
                 *g->reply.error ? ": " : "", g->reply.error);
        return again(a, why);
    }
    if (is_wanted(g) && begin(a) && g->expected > 0)
        return again(a, "the connection ended early");
    return ANSWERED;
}

static enum turn request(struct attempt *a, char url[GR_URL_MAX])
{
    struct curl_slist *headers = NULL;
    a->get->reply = (struct gr_http_reply){.length = -1, .from = -1, .total = -1};
    a->begun = a->get->ended = false;
    a->got = a->retry_after = 0;
    a->n_error = 0, *a->transport = 0;
    if (!add_headers(a, url, &headers)) {
        a->http->curl->slist_free_all(headers);
        return never(a, "the request does not fit");
    }
    set_options(a, url, headers);
    CURLcode code = a->http->curl->easy_perform(a->http->easy);
    a->http->reached |= a->get->reply.status != 0;
    bool skipped = code == CURLE_WRITE_ERROR && (a->get->ended || !is_wanted(a->get));
    enum turn turn = !code || skipped ? judge(a, url) : broken(a, code);
    a->http->curl->slist_free_all(headers);
    return turn;
}

/* A request with all its redirects; what the hub said of the file on the way stays. */
static enum turn request_all(struct attempt *a)
{
    char url[GR_URL_MAX], linked[sizeof a->get->reply.linked_etag] = "";
    snprintf(url, sizeof url, "%s", a->get->url);
    for (int i = 0; i <= REDIRECTS; i++) {
        enum turn turn = request(a, url);
        if (*a->get->reply.linked_etag)
            memcpy(linked, a->get->reply.linked_etag, sizeof linked);
        memcpy(a->get->reply.linked_etag, linked, sizeof linked);
        if (turn != REDIRECTED)
            return turn;
    }
    return never(a, "there are too many redirects");
}

int gr_http_refused(const char *what, const struct gr_http_reply *reply, char why[GR_WHY_MAX])
{
    static const struct {
        int status;
        const char *help;
    } answers[] = {
        {401, "it does not exist, or reading it takes a token: check the name, or set HF_TOKEN"},
        {403, "reading it takes a token that may: accept its terms on its page, then set HF_TOKEN"},
        {404, "there is none of this name: check it"},
        {410, "it is not there any more"},
    };
    const char *help = NULL;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        if (answers[i].status == reply->status)
            help = answers[i].help;
    snprintf(why, GR_WHY_MAX, "%s: HTTP %d%s%s; %s", what, reply->status, *reply->error ? ": " : "",
             reply->error, help ? help : "this is no file: check the address");
    return gr_status_exit(help ? GR_E_NO_MODEL : GR_E_IO);
}

/* ---- attempts ---- */

/* Waits; false: interrupted. */
static bool pause_for(double seconds)
{
    double end = gr_seconds() + seconds * wait_factor;
    while (!gr_interrupted() && gr_seconds() < end)
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    return !gr_interrupted();
}

static void add_to_why(struct gr_http_get *get, const char *text)
{
    size_t n = strlen(get->why);
    snprintf(get->why + n, sizeof get->why - n, "%s", text);
}

/* Waits before another attempt; false: there is none. *n counts attempts, *wait doubles. */
static bool goes_on(struct attempt *a, int *n, double *wait)
{
    char text[96];
    int most = !a->get->patient ? 1 : a->http->reached ? ATTEMPTS : FIRST_ATTEMPTS;
    if (a->got >= FRESH_BYTES)
        *n = 0, *wait = WAIT_S;
    if (++*n >= most) {
        if (*n > 1)
            snprintf(text, sizeof text, " (%d attempts)", *n), add_to_why(a->get, text);
        return false;
    }
    double s = a->retry_after > 0 ? (double)a->retry_after : *wait;
    *wait *= 2;
    if (s > LONGEST_WAIT_S) {
        snprintf(text, sizeof text, " and asks to wait %.0f s: try again then", s);
        add_to_why(a->get, text);
        return false;
    }
    gr_say("download: %s; trying again in %.0f s", a->get->why, s);
    return pause_for(s);
}

enum gr_http_end gr_http_get(struct gr_http *http, struct gr_http_get *get)
{
    struct attempt a = {.http = http, .get = get};
    double wait = WAIT_S;
    int n = 0;
    enum turn turn;
    do
        turn = request_all(&a);
    while (turn == AGAIN && goes_on(&a, &n, &wait));
    if (turn == STOPPED || gr_interrupted())
        return GR_HTTP_STOPPED;
    return turn == ANSWERED ? GR_HTTP_ANSWERED : GR_HTTP_FAILED;
}

/* ---- the client ---- */

/* Returns whether the token can be sent as it is (RFC 6750). */
static bool is_token(const char *token)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~+/=";
    size_t n = strspn(token, allowed);
    return n && n < 1024 && !token[n];
}

struct gr_http *gr_http_open(const char *endpoint, const char *token, int *rc)
{
    const struct gr_curl *curl = gr_curl();
    const char *wrong;
    char shown[300];
    *rc = gr_status_exit(GR_E_IO);
    if (!curl)
        return NULL;
    struct gr_http *h = calloc(1, sizeof *h);
    if (h)
        *h = (struct gr_http){.curl = curl, .easy = curl->easy_init(), .token = token};
    if (!h || !h->easy) {
        *rc = gr_say_no_memory();
    } else if (token && !is_token(token)) {
        gr_say_error("the token has characters that no token has; -hft or the variable HF_TOKEN "
                     "gives it");
        *rc = GR_EXIT_USAGE;
    } else if ((wrong = origin_of(curl, endpoint, h->origin, sizeof h->origin))) {
        gr_say_error("HF_ENDPOINT or MODEL_ENDPOINT is '%s': %s",
                     gr_http_shown(endpoint, shown, sizeof shown), wrong);
        *rc = GR_EXIT_USAGE;
    } else {
        *rc = 0;
        return h;
    }
    gr_http_close(&h);
    return NULL;
}

void gr_http_close(struct gr_http **http)
{
    struct gr_http *h = *http;
    if (h && h->easy)
        h->curl->easy_cleanup(h->easy);
    free(h);
    *http = NULL;
}
