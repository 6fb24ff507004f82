/* A thread that does what takes time in a folder of prefixes. Jobs are done in the order they are
 * put, those that read before others. */
#ifndef GR_TOOLS_DISK_QUEUE_H
#define GR_TOOLS_DISK_QUEUE_H

#include "disk_file.h"

struct gr_disk_queue;

enum gr_disk_op {
    GR_DISK_WRITE,  /* a file: head, token, state */
    GR_DISK_READ,   /* its state: bytes, n_token -> state, n_state */
    GR_DISK_REMOVE, /* a file */
    GR_DISK_TOUCH,  /* sets when it was used */
    GR_DISK_SCAN    /* the folder: known [n_known], head.model -> found [n_found], foreign */
};

/* All that a job points at belongs to it, but for the token. */
struct gr_disk_job {
    enum gr_disk_op op;
    char name[GR_DISK_NAME];
    struct gr_disk_head head;
    const int32_t *token; /* valid until the job is taken back */
    void *state;          /* WRITE: gr_state_free; READ: free */
    size_t n_state;
    uint64_t bytes;
    int32_t n_token;
    struct timespec used;
    char (*known)[GR_DISK_NAME];
    struct gr_disk_found *found;
    int32_t n_known, n_found;
    bool foreign;
    int rc;
    char message[256];
    /* Fields of the caller: */
    bool done, unwanted;
    struct gr_disk_job *next;
};

/* The thread begins with the first job, and calls `notice` (NULL: nothing) after each. */
int gr_disk_queue_new(struct gr_disk_queue **out, int dir, void (*notice)(void *user), void *user);
/* Waits for all jobs, and frees them. */
void gr_disk_queue_free(struct gr_disk_queue **q);
/* GR_E_NOMEM_HOST: there can be no thread; the job stays the caller's. */
int gr_disk_queue_put(struct gr_disk_queue *q, struct gr_disk_job *job);
/* Takes back a job that is done, in the order in which they were; NULL: none. waits: until there is
 * one, if there are any jobs. */
struct gr_disk_job *gr_disk_queue_take(struct gr_disk_queue *q, bool waits);
void gr_disk_job_free(struct gr_disk_job *job);

#endif
