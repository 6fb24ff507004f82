/* Observers of what a session computes: progress, taps, times of operations, importances. */
#ifndef GR_ENGINE_OBSERVE_H
#define GR_ENGINE_OBSERVE_H

#include <stdint.h>

#include "base/progress.h"
#include "engine/imatrix.h"
#include "gpurun.h"
#include "gr/backend.h"

struct gr_session;

struct gr_observers {
    struct gr_progress progress;    /* done: tokens of the batch before the current micro-batch */
    int32_t ubatch_tok;             /* tokens of the current micro-batch; 0: none is running */
    int32_t segment_node, all_node; /* nodes before the current segment, and of the plan */
    char *tap_name;
    gr_tensor_fn *tap_fn;
    void *tap_user;
    struct gr_imatrix_collector imatrix;
    gr_sample_fn *time_fn;
    void *time_user;
    int64_t time_start, segment_start; /* ns: of timing; of the current segment, relative to it */
};

/* Reports progress: the tokens done, and `part` thousandths of a token beyond them. */
void gr_session_report_progress(struct gr_session *s, uint64_t part);
/* Begins a segment of a plan. node: its first one; n_node: those of the plan. Returns the tap that
 * the segment is run with, the session being its argument, or NULL. */
gr_tap_fn *gr_observe_segment(struct gr_session *s, int32_t node, int32_t n_node);
void gr_observers_fini(struct gr_observers *o);

#endif
