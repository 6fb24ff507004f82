/* HTTP GET: redirects, the token, retries. */
#ifndef GR_TOOLS_HTTP_H
#define GR_TOOLS_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GR_URL_MAX 8192

/* What the last response said; the strings are "" and the numbers -1 where it said nothing. */
struct gr_http_reply {
    int status;          /* 200, 206, 304, 404, ..; 0: there was none */
    int64_t length;      /* bytes of the body */
    int64_t from, total; /* Content-Range: first byte, bytes of the whole */
    char etag[256], modified[64];
    char linked_etag[256]; /* X-Linked-Etag, of any response on the way: the hub's name of a file */
    char next[2048];       /* URL of the next page, by Link */
    char error[300];       /* the server's text about a status from 400 on, printable */
};

struct gr_http_get;
/* Called for a response of 200 or 206 before its body, and for each piece of it; false ends the
 * response there. begin sets get->expected. */
typedef bool gr_http_begin_fn(struct gr_http_get *get, const struct gr_http_reply *reply);
typedef bool gr_http_data_fn(struct gr_http_get *get, const void *p, size_t n);

struct gr_http_get {
    const char *url;
    bool patient; /* repeat also what never reached a server; otherwise one attempt */
    bool small;   /* limit the time of the whole */
    gr_http_begin_fn *begin;
    gr_http_data_fn *data;
    void *user;
    /* Set before the first attempt and, by begin and data, for the next ones. */
    uint64_t from;        /* first byte wanted */
    const char *if_range; /* "": unconditionally; what the bytes before `from` are part of */
    const char *if_none_match;
    int64_t expected; /* bytes of the body that are missing; -1: unknown */
    /* Results. */
    struct gr_http_reply reply;
    bool ended;    /* begin or data returned false */
    char why[512]; /* of GR_HTTP_FAILED */
};

/* ANSWERED: there is a response, of any status that is no reason to try again; its body is complete
 * unless get->ended. FAILED: there is none, get->why says why. STOPPED: by an interrupt. */
enum gr_http_end { GR_HTTP_ANSWERED, GR_HTTP_FAILED, GR_HTTP_STOPPED };

struct gr_http;
/* Opens the client. `endpoint`: URL of the hub; the token (NULL: none) is sent to its scheme, host
 * and port alone. Both live as long. NULL: after printing the error, with *rc the exit code. */
struct gr_http *gr_http_open(const char *endpoint, const char *token, int *rc);
void gr_http_close(struct gr_http **http);

enum gr_http_end gr_http_get(struct gr_http *http, struct gr_http_get *get);

/* Checks a URL: http or https, with a host. NULL, or what is wrong with it (static). */
const char *gr_http_check_url(struct gr_http *http, const char *url);
/* Checks a step from one URL to another that a server names: as above, and none from https to
 * http. */
const char *gr_http_check_step(struct gr_http *http, const char *from, const char *to);
/* Returns the URL without user, query and fragment, which may hold secrets; in buf. */
const char *gr_http_shown(const char *url, char *buf, size_t n);

#define GR_WHY_MAX 800
/* Writes why a response of another status than 200 and 206 gives nothing, and what helps; `what`
 * was asked for. Returns the exit code. */
int gr_http_refused(const char *what, const struct gr_http_reply *reply, char why[GR_WHY_MAX]);

/* Makes waits between attempts, and limits of time, so many times shorter, for tests. */
void gr_http_hurry(double waits, double limits);

#endif
