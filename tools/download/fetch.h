/* A file from a URL: resumed, checked, complete or not there at all. */
#ifndef GR_TOOLS_FETCH_H
#define GR_TOOLS_FETCH_H

#include <stdbool.h>
#include <stdint.h>

struct gr_http;

struct gr_fetch {
    const char *url;
    const char *path;  /* where it is to be; its folder exists */
    const char *name;  /* in messages */
    const char *title; /* of the progress: "download 2 of 5" */
    int64_t size;      /* bytes that it has; -1: as the server says */
    const char *oid;   /* name of its content (digest.h); NULL: unknown */
    int64_t later;     /* bytes of other files that are to come to the same disk */
    bool replaces;     /* fetch it even if there is a file of this size */
};

/* Fetches the file; an older one of this name is replaced when the new one is complete. 0, or an
 * exit code after printing the error. Without oid PATH.etag tells which version it is and where it
 * is from: a line each. */
int gr_fetch(struct gr_http *http, const struct gr_fetch *fetch);

/* What PATH.etag says about a file that exists. */
enum gr_fetched {
    GR_FETCHED_HERE,     /* it is from this URL, or by a program that does not note the URL */
    GR_FETCHED_UNKNOWN,  /* it was not downloaded */
    GR_FETCHED_ELSEWHERE /* it is from another one */
};
/* from[n] receives the other URL. */
enum gr_fetched gr_fetched_from(const char *path, const char *url, char *from, int n);

/* Asks the server whether the file that exists is still what the URL has. *current stays true where
 * that cannot be found out, after a warning. 0, or an exit code after printing the error. */
int gr_fetch_ask(struct gr_http *http, const struct gr_fetch *fetch, bool *current);

#endif
