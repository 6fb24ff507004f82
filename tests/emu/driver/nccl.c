/* The emulated NCCL: what it brings, what it refuses and what it reports. One thread has both
 * ranks, as calls do not block. */
#include <time.h>

#include "cuda/nccl.h"

#include "tests/emu/driver/driver.h"

struct gr_nccl nccl;

enum { bytes = n * sizeof(uint32_t) };

/* Two ranks on two devices, with memory for n numbers each. */
struct pair {
    cu_context context[2];
    nccl_comm comm[2];
    cu_stream stream[2];
    void *p[2];
};

static struct nccl_config config(void)
{
    return (struct nccl_config){.size = sizeof(struct nccl_config),
                                .magic = NCCL_CONFIG_MAGIC,
                                .version = 22700,
                                .cga_cluster_size = NCCL_UNSET,
                                .min_ctas = 1,
                                .max_ctas = 4};
}

/* Asks until the call is over; what came of it. */
static int until_over(struct pair *t, int i)
{
    const struct timespec nap = {0, 1000000};
    int result = NCCL_IN_PROGRESS;
    OK(cu.context_set(t->context[i]));
    for (int k = 0; k < 10000 && result == NCCL_IN_PROGRESS; k++) {
        if (k > 10)
            (void)nanosleep(&nap, NULL);
        EXPECT_EQ(nccl.async_error(t->comm[i], &result), NCCL_OK);
    }
    return result;
}

static void init_both(struct pair *t, nccl_comm comm[2])
{
    struct nccl_id id;
    struct nccl_config c = config();
    EXPECT_EQ(nccl.unique_id(&id), NCCL_OK);
    for (int i = 0; i < 2; i++) {
        OK(cu.context_set(t->context[i]));
        EXPECT_EQ(nccl.init(&comm[i], 2, id, i, &c), NCCL_IN_PROGRESS);
    }
}

static struct pair pair_open(const char *options)
{
    struct pair t = {0};
    EXPECT_EQ(emu.configure(options), 0);
    OK(cu.init(0));
    for (int i = 0; i < 2; i++) {
        OK(cu.context_retain(&t.context[i], i));
        OK(cu.context_set(t.context[i]));
        OK(cu.stream_create(&t.stream[i], CU_STREAM_NON_BLOCKING));
        EXPECT_EQ(nccl.alloc(&t.p[i], bytes), NCCL_OK);
    }
    init_both(&t, t.comm);
    EXPECT_EQ(until_over(&t, 0), NCCL_OK);
    EXPECT_EQ(until_over(&t, 1), NCCL_OK);
    return t;
}

static void pair_close(struct pair *t)
{
    for (int i = 0; i < 2; i++) {
        OK(cu.context_set(t->context[i]));
        OK(cu.stream_sync(t->stream[i]));
    }
    for (int i = 0; i < 2; i++) {
        OK(cu.context_set(t->context[i]));
        if (t->comm[i]) {
            EXPECT_EQ(nccl.finalize(t->comm[i]), NCCL_IN_PROGRESS);
            EXPECT_EQ(until_over(t, i), NCCL_OK);
            EXPECT_EQ(nccl.destroy(t->comm[i]), NCCL_OK);
        }
        EXPECT_EQ(nccl.free(t->p[i]), NCCL_OK);
        OK(cu.stream_destroy(t->stream[i]));
        OK(cu.context_release(i));
    }
    OK(cu.context_set(NULL));
    EXPECT_EQ(emu.live(NULL), 0);
    REPORTED("");
}

/* A message from rank 0 to rank 1, begun on both sides. */
static void message(struct pair *t, size_t sent, size_t received)
{
    OK(cu.context_set(t->context[0]));
    EXPECT_EQ(nccl.send(t->p[0], sent, NCCL_BYTES, 1, t->comm[0], t->stream[0]), NCCL_IN_PROGRESS);
    EXPECT_EQ(until_over(t, 0), NCCL_OK);
    OK(cu.context_set(t->context[1]));
    EXPECT_EQ(nccl.recv(t->p[1], received, NCCL_BYTES, 0, t->comm[1], t->stream[1]),
              NCCL_IN_PROGRESS);
    EXPECT_EQ(until_over(t, 1), NCCL_OK);
}

static cu_pointer address(const void *p)
{
    return (cu_pointer)(uintptr_t)p;
}

static void test_message(const char *options)
{
    struct pair t = pair_open(options);
    uint32_t values[n], back[n];
    for (uint32_t i = 0; i < n; i++)
        values[i] = 5 + i;
    OK(cu.context_set(t.context[0]));
    OK(cu.copy_in(address(t.p[0]), values, bytes, t.stream[0]));
    message(&t, bytes, bytes);
    OK(cu.copy_out(back, address(t.p[1]), bytes, t.stream[1]));
    EXPECT_EQ(n_wrong(back, 5), 0);
    pair_close(&t);
}

/* Several messages of a graph, each time it is launched. */
static void test_graph(void)
{
    struct pair t = pair_open("quiet,devices=2");
    cu_graph graph;
    cu_graph_exec exec[2];
    for (int i = 0; i < 2; i++) {
        OK(cu.context_set(t.context[i]));
        OK(cu.capture_begin(t.stream[i], CU_CAPTURE_THREAD_LOCAL));
        EXPECT_EQ(nccl.group_start(), NCCL_OK);
        EXPECT_EQ(nccl.send(t.p[i], 100, NCCL_BYTES, !i, t.comm[i], t.stream[i]), NCCL_OK);
        EXPECT_EQ(nccl.recv((char *)t.p[i] + 100, 100, NCCL_BYTES, !i, t.comm[i], t.stream[i]),
                  NCCL_OK);
        EXPECT_EQ(nccl.group_end(), NCCL_OK);
        OK(cu.capture_end(t.stream[i], &graph));
        OK(cu.graph_instantiate(&exec[i], graph, 0));
        OK(cu.graph_destroy(graph));
    }
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 2; i++) {
            OK(cu.context_set(t.context[i]));
            OK(cu.graph_launch(exec[i], t.stream[i]));
        }
    for (int i = 0; i < 2; i++) {
        OK(cu.context_set(t.context[i]));
        OK(cu.stream_sync(t.stream[i]));
    }
    EXPECT_EQ(emu.bytes("ncclSend"), 6 * 100);
    EXPECT_EQ(nccl.destroy(t.comm[0]), NCCL_OK);
    REPORTED("graphs with messages of rank 0 exist");
    t.comm[0] = NULL;
    OK(cu.graph_exec_destroy(exec[0]));
    OK(cu.graph_exec_destroy(exec[1]));
    pair_close(&t);
}

static void test_sizes(void)
{
    struct pair t = pair_open("quiet,devices=2");
    message(&t, 100, 104);
    OK(cu.stream_sync(t.stream[1]));
    REPORTED("other sizes");
    pair_close(&t);
}

static void test_memory(void)
{
    struct pair t = pair_open("quiet,devices=2");
    OK(cu.context_set(t.context[0]));
    EXPECT_EQ(nccl.send((char *)t.p[0] + 8, bytes, NCCL_BYTES, 1, t.comm[0], t.stream[0]),
              NCCL_INVALID_ARGUMENT);
    REPORTED("is no memory of the communicator's device");
    EXPECT_EQ(nccl.send(t.p[1], 8, NCCL_BYTES, 1, t.comm[0], t.stream[0]), NCCL_INVALID_ARGUMENT);
    REPORTED("is no memory of the communicator's device");
    EXPECT_EQ(nccl.send(t.p[0], 8, NCCL_BYTES, 1, t.comm[0], t.stream[1]), NCCL_INVALID_ARGUMENT);
    REPORTED("are not of one device");
    EXPECT_EQ(nccl.send(t.p[0], 8, NCCL_BYTES, 2, t.comm[0], t.stream[0]), NCCL_INVALID_ARGUMENT);
    EXPECT_EQ(nccl.send(t.p[0], 8, NCCL_BYTES, 0, t.comm[0], t.stream[0]), NCCL_INVALID_USAGE);
    void *handle;
    EXPECT_EQ(nccl.enter(t.comm[0], (char *)t.p[0] + 8, bytes, &handle), NCCL_INVALID_ARGUMENT);
    REPORTED("are no memory of a device");
    EXPECT_EQ(nccl.enter(t.comm[0], t.p[0], bytes, &handle), NCCL_OK);
    EXPECT_EQ(nccl.free(t.p[0]), NCCL_OK);
    REPORTED("the memory is registered with rank 0");
    EXPECT_EQ(nccl.alloc(&t.p[0], bytes), NCCL_OK);
    EXPECT_EQ(nccl.destroy(t.comm[0]), NCCL_OK);
    REPORTED("rank 0 has 1 buffers registered");
    t.comm[0] = NULL;
    pair_close(&t);
}

/* A call in the middle of another one, and what no group is open for. */
static void test_progress(void)
{
    struct pair t = pair_open("quiet,devices=2");
    OK(cu.context_set(t.context[0]));
    EXPECT_EQ(nccl.send(t.p[0], 8, NCCL_BYTES, 1, t.comm[0], t.stream[0]), NCCL_IN_PROGRESS);
    EXPECT_EQ(nccl.send(t.p[0], 8, NCCL_BYTES, 1, t.comm[0], t.stream[0]), NCCL_INVALID_ARGUMENT);
    REPORTED("is still at its last call");
    EXPECT(strstr(nccl.last_error(t.comm[0]), "before the previous operation") != NULL);
    EXPECT_EQ(until_over(&t, 0), NCCL_OK);
    EXPECT_EQ(nccl.group_end(), NCCL_INVALID_USAGE);
    REPORTED("there is no group");
    OK(cu.context_set(t.context[1]));
    EXPECT_EQ(nccl.recv(t.p[1], 8, NCCL_BYTES, 0, t.comm[1], t.stream[1]), NCCL_IN_PROGRESS);
    EXPECT_EQ(until_over(&t, 1), NCCL_OK);
    pair_close(&t);
}

/* An abort ends an operation whose partner never comes; the other side waits until it aborts
 * too. */
static void test_abort(void)
{
    struct pair t = pair_open("quiet,devices=2");
    for (int i = 0; i < 2; i++) {
        OK(cu.context_set(t.context[i]));
        EXPECT_EQ(nccl.recv(t.p[i], 8, NCCL_BYTES, !i, t.comm[i], t.stream[i]), NCCL_IN_PROGRESS);
        EXPECT_EQ(until_over(&t, i), NCCL_OK);
    }
    cu_event event;
    OK(cu.event_create(&event, CU_EVENT_NO_TIMING));
    OK(cu.event_record(event, t.stream[1]));
    EXPECT_EQ(nccl.abort(t.comm[0]), NCCL_OK);
    for (int i = 0; i < 20; i++)
        EXPECT_EQ(cu.event_query(event), CU_NOT_READY);
    EXPECT_EQ(nccl.abort(t.comm[1]), NCCL_OK);
    OK(cu.event_sync(event));
    OK(cu.event_destroy(event));
    t.comm[0] = t.comm[1] = NULL;
    pair_close(&t);
}

static void test_two_communicators(void)
{
    struct pair t = pair_open("quiet,devices=2,order=late");
    nccl_comm other[2];
    cu_stream s;
    init_both(&t, other);
    for (int i = 0; i < 2; i++) {
        nccl_comm first = t.comm[i];
        t.comm[i] = other[i];
        EXPECT_EQ(until_over(&t, i), NCCL_OK);
        t.comm[i] = first;
    }
    OK(cu.context_set(t.context[0]));
    OK(cu.stream_create(&s, CU_STREAM_NON_BLOCKING));
    EXPECT_EQ(nccl.send(t.p[0], 8, NCCL_BYTES, 1, t.comm[0], t.stream[0]), NCCL_IN_PROGRESS);
    EXPECT_EQ(until_over(&t, 0), NCCL_OK);
    nccl_comm first = t.comm[0];
    EXPECT_EQ(nccl.send((char *)t.p[0] + 8, 8, NCCL_BYTES, 1, other[0], s), NCCL_IN_PROGRESS);
    t.comm[0] = other[0];
    EXPECT_EQ(until_over(&t, 0), NCCL_OK);
    t.comm[0] = first;
    REPORTED("operations of two communicators, and nothing orders them");
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(nccl.abort(t.comm[i]), NCCL_OK);
        EXPECT_EQ(nccl.abort(other[i]), NCCL_OK);
        t.comm[i] = NULL;
    }
    OK(cu.context_set(t.context[0]));
    OK(cu.stream_sync(s));
    OK(cu.stream_destroy(s));
    pair_close(&t);
}

static void test_one_device_for_two(void)
{
    struct pair t = {0};
    EXPECT_EQ(emu.configure("quiet"), 0);
    OK(cu.init(0));
    OK(cu.context_retain(&t.context[0], 0));
    t.context[1] = t.context[0];
    init_both(&t, t.comm);
    EXPECT_EQ(until_over(&t, 0), NCCL_INVALID_USAGE);
    EXPECT_EQ(until_over(&t, 1), NCCL_INVALID_USAGE);
    EXPECT(strstr(nccl.last_error(t.comm[0]), "Duplicate GPU detected") != NULL);
    EXPECT_EQ(nccl.abort(t.comm[0]), NCCL_OK);
    EXPECT_EQ(nccl.abort(t.comm[1]), NCCL_OK);
    OK(cu.context_release(0));
    OK(cu.context_set(NULL));
    REPORTED("");
}

static void test_bad_config(void)
{
    struct pair t = pair_open("quiet,devices=2");
    struct nccl_id id = {{0}};
    struct nccl_config c = config();
    nccl_comm comm;
    c.magic = 0;
    EXPECT_EQ(nccl.init(&comm, 2, id, 0, &c), NCCL_INVALID_ARGUMENT);
    REPORTED("a configuration that NCCL 22809 does not know");
    c = config(), c.blocking = 1;
    EXPECT_EQ(nccl.init(&comm, 2, id, 0, &c), NCCL_INVALID_USAGE);
    REPORTED("communicators that block are not emulated");
    c = config();
    EXPECT_EQ(nccl.init(&comm, 2, id, 2, &c), NCCL_INVALID_ARGUMENT);
    EXPECT(!comm);
    pair_close(&t);
}

void test_nccl(void)
{
    static const char *const orders[] = {"quiet,devices=2,order=eager",
                                         "quiet,devices=2,order=late", "quiet,devices=2,seed=1",
                                         "quiet,devices=2,seed=2"};
    for (int i = 0; i < 4; i++)
        test_message(orders[i]);
    test_graph();
    test_sizes();
    test_memory();
    test_progress();
    test_abort();
    test_two_communicators();
    test_one_device_for_two();
    test_bad_config();
}
