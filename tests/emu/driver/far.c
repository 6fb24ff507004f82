/* The emulated NCCL between processes. This program starts itself again for the last rank, with the
 * case, the id and a name of the machine; the other ranks are in this process. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda/nccl.h"
#include "tests/emu/driver/driver.h"

extern struct gr_nccl nccl;

enum { bytes = n * sizeof(uint32_t), most_ranks = 3 };

/* A rank, with memory for n numbers on the device of its number. */
struct side {
    int rank, device;
    cu_context context;
    cu_stream stream;
    cu_event event;
    nccl_comm comm;
    void *p;
};

struct far_case {
    const char *name, *options;
    const char *host;              /* NCCL_HOSTID of the other process; NULL: this machine's */
    int n_here;                    /* ranks of this process */
    int more;                      /* ranks that the other one counts beyond those that come */
    int device;                    /* of the other one; -1: that of its number */
    void (*here)(struct side *s);  /* [n_here], once they have begun to join */
    void (*there)(struct side *s); /* likewise in the other process */
    void (*after)(struct side *s); /* here, when the other process has ended */
};
static pid_t child; /* the other process, and its end */
static int status;
static bool refused_here;

/* ---- a rank ---- */

static void make_current(const struct side *s)
{
    OK(cu.context_set(s->context));
}

/* Result of the communicator's last call; NCCL_IN_PROGRESS when it is still under way after ms
 * milliseconds. */
static int result_of(const struct side *s, int ms)
{
    const struct timespec nap = {0, 1000000};
    int result = NCCL_IN_PROGRESS;
    for (int i = 0; i < ms && result == NCCL_IN_PROGRESS; i++) {
        EXPECT_EQ(nccl.async_error(s->comm, &result), NCCL_OK);
        if (result == NCCL_IN_PROGRESS)
            (void)nanosleep(&nap, NULL);
    }
    return result;
}

static void expect_done(const struct side *s)
{
    make_current(s);
    EXPECT_EQ(result_of(s, 10000), NCCL_OK);
}

static struct side open_side(const struct nccl_id *id, int rank, int device, int n_rank)
{
    struct side s = {.rank = rank, .device = device};
    struct nccl_config c = {.size = sizeof c,
                            .magic = NCCL_CONFIG_MAGIC,
                            .version = 22700,
                            .cga_cluster_size = NCCL_UNSET,
                            .min_ctas = 1,
                            .max_ctas = 4};
    OK(cu.context_retain(&s.context, device));
    make_current(&s);
    OK(cu.stream_create(&s.stream, CU_STREAM_NON_BLOCKING));
    OK(cu.event_create(&s.event, CU_EVENT_NO_TIMING));
    EXPECT_EQ(nccl.alloc(&s.p, bytes), NCCL_OK);
    EXPECT_EQ(nccl.init(&s.comm, n_rank, *id, rank, &c), NCCL_IN_PROGRESS);
    return s;
}

static void abort_side(struct side *s)
{
    make_current(s);
    EXPECT_EQ(nccl.abort(s->comm), NCCL_OK);
    s->comm = NULL;
    OK(cu.stream_sync(s->stream));
}

static void close_side(struct side *s)
{
    make_current(s);
    OK(cu.stream_sync(s->stream));
    if (s->comm) {
        EXPECT_EQ(nccl.finalize(s->comm), NCCL_IN_PROGRESS);
        expect_done(s);
        EXPECT_EQ(nccl.destroy(s->comm), NCCL_OK);
    }
    EXPECT_EQ(nccl.free(s->p), NCCL_OK);
    OK(cu.event_destroy(s->event));
    OK(cu.stream_destroy(s->stream));
    OK(cu.context_release(s->device));
    OK(cu.context_set(NULL));
}

static void send_to(struct side *s, int rank, size_t size)
{
    make_current(s);
    EXPECT_EQ(nccl.send(s->p, size, NCCL_BYTES, rank, s->comm, s->stream), NCCL_IN_PROGRESS);
    expect_done(s);
}

static void recv_from(struct side *s, int rank, size_t size)
{
    make_current(s);
    EXPECT_EQ(nccl.recv(s->p, size, NCCL_BYTES, rank, s->comm, s->stream), NCCL_IN_PROGRESS);
    expect_done(s);
}

static cu_pointer address(const struct side *s)
{
    return (cu_pointer)(uintptr_t)s->p;
}

static void put_values(struct side *s, uint32_t first)
{
    uint32_t values[n];
    for (uint32_t i = 0; i < n; i++)
        values[i] = first + i;
    OK(cu.copy_in(address(s), values, bytes, s->stream));
}

static void expect_values(struct side *s, uint32_t first)
{
    uint32_t values[n];
    make_current(s);
    OK(cu.copy_out(values, address(s), bytes, s->stream));
    EXPECT_EQ(n_wrong(values, first), 0);
}

static void expect_unfinished(const struct side *s)
{
    for (int i = 0; i < 20; i++)
        EXPECT_EQ(cu.event_query(s->event), CU_NOT_READY);
}

/* ---- there and back ---- */

static void echo_here(struct side *s)
{
    expect_done(s);
    put_values(s, 5);
    send_to(s, 1, bytes);
    OK(cu.fill(address(s), 0, bytes, s->stream));
    recv_from(s, 1, bytes);
    expect_values(s, 5);
}

static void echo_there(struct side *s)
{
    expect_done(s);
    recv_from(s, 0, bytes);
    send_to(s, 0, bytes);
}

/* One that has finalised has gone in good order. */
static void still_good(struct side *s)
{
    EXPECT_EQ(result_of(s, 1), NCCL_OK);
}

/* Two ranks here and one there, in a ring. */
static void ring_here(struct side *s)
{
    expect_done(&s[0]);
    expect_done(&s[1]);
    make_current(&s[0]);
    put_values(&s[0], 70);
    send_to(&s[0], 1, bytes);
    recv_from(&s[1], 0, bytes);
    send_to(&s[1], 2, bytes);
    recv_from(&s[0], 2, bytes);
    expect_values(&s[0], 70);
}

static void ring_there(struct side *s)
{
    expect_done(s);
    recv_from(s, 1, bytes);
    send_to(s, 0, bytes);
}

/* Messages both ways as a graph, three times. */
static void replay(struct side *s)
{
    cu_graph graph;
    cu_graph_exec exec;
    expect_done(s);
    OK(cu.capture_begin(s->stream, CU_CAPTURE_THREAD_LOCAL));
    EXPECT_EQ(nccl.group_start(), NCCL_OK);
    EXPECT_EQ(nccl.send(s->p, 100, NCCL_BYTES, !s->rank, s->comm, s->stream), NCCL_OK);
    EXPECT_EQ(nccl.recv((char *)s->p + 100, 100, NCCL_BYTES, !s->rank, s->comm, s->stream),
              NCCL_OK);
    EXPECT_EQ(nccl.group_end(), NCCL_OK);
    OK(cu.capture_end(s->stream, &graph));
    OK(cu.graph_instantiate(&exec, graph, 0));
    OK(cu.graph_destroy(graph));
    for (int i = 0; i < 3; i++)
        OK(cu.graph_launch(exec, s->stream));
    OK(cu.stream_sync(s->stream));
    EXPECT_EQ(emu.bytes("ncclSend"), 3 * 100);
    OK(cu.graph_exec_destroy(exec));
}

/* ---- what runs when ---- */

/* A process that makes no calls still runs the operations that the other one waits for, and no
 * more. */
static struct {
    cu_module module;
    cu_stream other;
    cu_graph_exec send;
    cu_pointer memory;
} idle;

static void capture_send(struct side *s)
{
    cu_graph graph;
    OK(cu.capture_begin(s->stream, CU_CAPTURE_THREAD_LOCAL));
    EXPECT_EQ(nccl.send(s->p, bytes, NCCL_BYTES, 1, s->comm, s->stream), NCCL_OK);
    OK(cu.capture_end(s->stream, &graph));
    OK(cu.graph_instantiate(&idle.send, graph, 0));
    OK(cu.graph_destroy(graph));
}

static void idle_here(struct side *s)
{
    struct bench b = {0};
    expect_done(s);
    capture_send(s);
    OK(cu.module_load(&idle.module, "image"));
    OK(cu.module_function(&b.add, idle.module, "test_add"));
    OK(cu.alloc(&idle.memory, bytes));
    OK(cu.stream_create(&idle.other, CU_STREAM_NON_BLOCKING));
    put_values(s, 10);
    OK(launch_add(&b, idle.other, idle.memory, idle.memory, 1));
    OK(launch_add(&b, s->stream, address(s), address(s), 7));
    OK(cu.graph_launch(idle.send, s->stream));
    OK(launch_add(&b, s->stream, address(s), address(s), 7));
}

static void end_idle(struct side *s)
{
    EXPECT_EQ(emu.count("kernel"), 1);
    OK(cu.stream_sync(s->stream));
    EXPECT_EQ(emu.count("kernel"), 2);
    OK(cu.stream_sync(idle.other));
    OK(cu.stream_destroy(idle.other));
    OK(cu.graph_exec_destroy(idle.send));
    OK(cu.free(idle.memory));
    OK(cu.module_unload(idle.module));
}

static void idle_there(struct side *s)
{
    expect_done(s);
    recv_from(s, 0, bytes);
    expect_values(s, 17);
}

/* ---- what goes wrong ---- */

static void sizes_here(struct side *s)
{
    expect_done(s);
    send_to(s, 1, 100);
    OK(cu.stream_sync(s->stream));
    REPORTED("ncclSend of 100 bytes");
}

static void sizes_there(struct side *s)
{
    expect_done(s);
    recv_from(s, 0, 104);
    OK(cu.stream_sync(s->stream));
    REPORTED("meets one of 100 bytes of rank 0: other sizes");
}

static void one_device(struct side *s)
{
    EXPECT_EQ(result_of(s, 10000), NCCL_INVALID_USAGE);
    EXPECT(strstr(nccl.last_error(s->comm), "Duplicate GPU detected") != NULL);
    abort_side(s);
}

/* A message that the other side never begins, whose process has died meanwhile. */
static void wait_for_it(struct side *s)
{
    expect_done(s);
    recv_from(s, 1, bytes);
    OK(cu.event_record(s->event, s->stream));
}

static void kill_it(struct side *s)
{
    wait_for_it(s);
    EXPECT_EQ(kill(child, SIGKILL), 0);
}

static void be_killed(struct side *s)
{
    expect_done(s);
    (void)pause();
}

static void notice_nothing(struct side *s)
{
    expect_unfinished(s);
    EXPECT_EQ(result_of(s, 1), NCCL_OK);
    abort_side(s);
    OK(cu.event_sync(s->event));
}

static void notice(struct side *s)
{
    int result = NCCL_OK;
    expect_unfinished(s);
    while (result == NCCL_OK)
        result = result_of(s, 1);
    EXPECT_EQ(result, NCCL_REMOTE);
    EXPECT(strstr(nccl.last_error(s->comm), "closed by remote peer") != NULL);
    abort_side(s);
}

/* A message that gets lost: both sides wait for it until they abort. */
static void lose(struct side *s)
{
    expect_done(s);
    EXPECT_EQ(emu.fail("nccl-hang", 1, 1), 0);
    send_to(s, 0, bytes);
    OK(cu.event_record(s->event, s->stream));
    expect_unfinished(s);
    abort_side(s);
}

/* The other rank counts one more: who comes second is refused, and the first one waits on. */
static void disagree_here(struct side *s)
{
    refused_here = result_of(s, 300) == NCCL_INVALID_USAGE;
    abort_side(s);
}

static void disagree_there(struct side *s)
{
    _exit(result_of(s, 300));
}

static void one_was_refused(struct side *s)
{
    (void)s;
    bool refused_there = WEXITSTATUS(status) == NCCL_INVALID_USAGE;
    EXPECT_EQ(refused_here + refused_there, 1);
}

/* The process of the id forgets it, before all have come. */
static void forget(struct side *s)
{
    (void)s;
    EXPECT_EQ(emu.configure("quiet,devices=3"), 0);
    OK(cu.init(0));
}

static void be_forgotten(struct side *s)
{
    int result = result_of(s, 10000);
    EXPECT(result == NCCL_REMOTE || result == NCCL_SYSTEM); /* it was there, or came too late */
    abort_side(s);
}

/* ---- all of them ---- */

static const struct far_case cases[] = {
    {"eager", "order=eager", NULL, 1, 0, -1, echo_here, echo_there, still_good},
    {"late", "order=late", NULL, 1, 0, -1, echo_here, echo_there, still_good},
    {"random", "seed=3", NULL, 1, 0, -1, echo_here, echo_there, still_good},
    {"machines", "seed=4", "other", 1, 0, -1, echo_here, echo_there, still_good},
    {"one device of each machine", "seed=5", "other", 1, 0, 0, echo_here, echo_there, NULL},
    {"ring", "seed=6", NULL, 2, 0, -1, ring_here, ring_there, NULL},
    {"late ring", "order=late", "other", 2, 0, -1, ring_here, ring_there, NULL},
    {"graph", "seed=7", NULL, 1, 0, -1, replay, replay, NULL},
    {"idle", "order=late", NULL, 1, 0, -1, idle_here, idle_there, end_idle},
    {"sizes", "seed=8", NULL, 1, 0, -1, sizes_here, sizes_there, NULL},
    {"one device", "seed=9", NULL, 1, 0, 0, one_device, one_device, NULL},
    {"death", "seed=10", NULL, 1, 0, -1, kill_it, be_killed, notice_nothing},
    {"death of a machine", "seed=11", "other", 1, 0, -1, kill_it, be_killed, notice},
    {"lost message", "seed=12", NULL, 1, 0, -1, wait_for_it, lose, notice_nothing},
    {"counts", "seed=13", NULL, 1, 1, -1, disagree_here, disagree_there, one_was_refused},
    {"forgotten", "seed=14", NULL, 0, 1, -1, forget, be_forgotten, NULL},
};
enum { n_case = sizeof cases / sizeof *cases };

static void configure(const struct far_case *c)
{
    char options[64];
    (void)snprintf(options, sizeof options, "quiet,devices=3,%s", c->options);
    EXPECT_EQ(emu.configure(options), 0);
    OK(cu.init(0));
}

static void finish(struct side *s)
{
    close_side(s);
    EXPECT_EQ(emu.live(NULL), 0);
    REPORTED("");
}

int far_rank(const char *name, const char *id_text)
{
    struct nccl_id id = {{0}};
    (void)snprintf(id.bytes, sizeof id.bytes, "%s", id_text);
    (void)alarm(60); /* a wait without end is a failure */
    for (int i = 0; i < n_case; i++) {
        const struct far_case *c = &cases[i];
        if (strcmp(name, c->name) != 0)
            continue;
        if (c->host)
            (void)setenv("NCCL_HOSTID", c->host, 1);
        configure(c);
        int last = c->n_here ? c->n_here : 1;
        struct side s = open_side(&id, last, c->device < 0 ? last : c->device, last + 1 + c->more);
        c->there(&s);
        finish(&s);
    }
    return n_failed;
}

static pid_t start(const struct far_case *c, const struct nccl_id *id)
{
    pid_t pid = fork();
    if (pid == 0) {
        (void)execl("/proc/self/exe", "t_emu_driver", library_path, c->name, id->bytes, NULL);
        _exit(1);
    }
    return pid;
}

static void run_case(const struct far_case *c)
{
    struct nccl_id id;
    struct side s[most_ranks - 1];
    int before = n_failed;
    bool is_to_fail = c->there == be_killed || c->there == disagree_there;
    configure(c);
    EXPECT_EQ(nccl.unique_id(&id), NCCL_OK);
    child = start(c, &id);
    for (int i = 0; i < c->n_here; i++)
        s[i] = open_side(&id, i, i, c->n_here + 1);
    c->here(s);
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status && !is_to_fail, 0);
    if (c->after)
        c->after(s);
    for (int i = 0; i < c->n_here; i++)
        close_side(&s[i]);
    EXPECT_EQ(emu.live(NULL), 0);
    REPORTED("");
    if (n_failed > before)
        fprintf(stderr, "that was the case of processes \"%s\"\n", c->name);
}

void test_far(void)
{
    (void)setenv("NCCL_HOSTID", "this", 1);
    for (int i = 0; i < n_case; i++)
        run_case(&cases[i]);
}
