/* Ranks of a transport: a thread each, with a backend on a device, and device memory of known
 * values. */
#ifndef TESTS_CUDA_RANKS_H
#define TESTS_CUDA_RANKS_H

#include <stdbool.h>

#include "fixture.h"

#define MAX_RANK 4

struct world;

struct rank {
    struct world *world;
    int32_t member;
    struct gr_backend *backend;
    struct gr_transport *transport;
    int rc;         /* result of the whole script */
    char text[512]; /* the message of it */
    int32_t suspect;
};

/* Options of a test, and then its results. */
struct world {
    enum gr_transport_kind kind;
    int32_t n, n_device; /* ranks; devices, taken in turn */
    int32_t n_group;     /* ranks that gather: 0 = none; each sends to the one so many behind */
    size_t piece_bytes;
    int64_t patience_ns; /* of every call; 0 = long enough */
    int64_t join_ns;     /* of joining, likewise */
    bool absent[MAX_RANK];
    int (*run)(struct rank *r); /* in the thread of each, once it has joined */
    void *user;
    struct gr_device_opt device;
    struct gr_transport_ticket ticket; /* made where it is empty */
    _Atomic int lost;
    _Atomic int n_settled; /* ranks whose joining has ended */
    struct rank rank[MAX_RANK];
};

/* Runs it; the device has been configured. */
void world_run(struct world *w);
/* All that every rank did succeeded, and nothing is left anywhere. */
void world_expect(struct world *w);
void world_expect_nothing_left(void);

/* By when a call of this rank is to have ended. */
int64_t rank_deadline(const struct rank *r);
/* Device memory; its bytes are drawn from `seed`, by a copy that is queued. */
int rank_fill(struct rank *r, void *p, size_t bytes, uint32_t seed);
/* 0, or GR_E_INTERNAL when other bytes are there than `seed` gives. */
int rank_compare(struct rank *r, const void *p, size_t bytes, uint32_t seed);

/* ---- what ranks do; user is a script ---- */

struct script {
    int n_message;
    int stop_at; /* rank 1 stops there, -1 = nowhere */
};

/* Messages of 1 byte to 4 MiB go from the first rank to the last, each time by the same memory:
 * nothing waits on the host between one and the next. */
int rank_pass_on(struct rank *r);
/* All gather parts of many sizes, again and again in the same memory. */
int rank_gather(struct rank *r);
/* Two stages of two ranks: both at once. */
int rank_gather_and_pass(struct rank *r);

/* It failed with GR_E_PEER_LOST, says this, and blames that member. */
void rank_expect_lost(const struct rank *r, const char *text, int32_t suspect);

#endif
