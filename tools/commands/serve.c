/* gpurun serve: a model behind HTTP. The server listens first and loads then, so that whoever waits
 * for it can ask how far it is. */
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "commands.h"
#include "run.h"
#include "stages.h"
#include "tools/cli/model.h"
#include "tools/cli/numbers.h"
#include "tools/cli/progress.h"
#include "tools/cli/say.h"
#include "tools/cli/templates.h"
#include "tools/cli/together.h"
#include "tools/serve/embedder.h"
#include "tools/serve/keys.h"
#include "tools/serve/models.h"
#include "tools/serve/sessions.h"
#include "tools/serve/slots.h"
#include "tools/serve/strengths.h"
#include "tools/serve/systemd.h"

#define AUTO_SLOTS 4
#define CACHE_LEAST 64 /* tokens of a text that is worth a file */
#define MOST_BODIES ((size_t)256 << 20)
#define TICK_MS 20
#define TRIM_MS 5000
#define TRIM_BYTES (256 << 10) /* free memory that the allocator keeps at the end of each arena */
#define MAP_BYTES (1 << 20)    /* larger memory is mapped, and gone when it is freed */
#define LAST_WORDS_S 0.5       /* for the ends of answers that are cut off */

/* A model. */
struct serving {
    struct gr_server server; /* the first member: of this, others know */
    const struct gr_options *o;
    struct gr_options own; /* of a model of --models-dir, to which o points then */
    bool beside;           /* other models of the folder are loaded, which may make way */
    struct gr_session *session;
    struct gr_embedder_params vectors; /* of the embedder, if there is one */
    struct gr_length length;
    bool spare; /* of gr_scheduler_params */
    char name[256];
    char no_extend[512], no_shift[512];
    pthread_t thread;
    bool runs; /* the thread does */
};

/* The server of one or more. */
struct host {
    const struct gr_options *o;
    struct gr_life life;
    struct gr_httpd *http;
    struct gr_keys *keys;
    struct gr_models *models;
    struct gr_route route[GR_MAX_ROUTE];
    const struct serving *first; /* the model of -m; NULL: none */
};

/* ---- signals ---- */

static volatile sig_atomic_t n_signal, last_signal, may_wait;
static int wake_fd = -1;

/* The first signal asks for the end; a second one, or one before there is anything to end, ends the
 * program. */
static void on_signal(int number)
{
    last_signal = number;
    if (++n_signal > 1 || !may_wait)
        _exit(128 + number);
    (void)!write(wake_fd, &(uint64_t){1}, sizeof(uint64_t));
}

static int catch_signals(struct gr_life *s)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    s->wake = wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd < 0)
        return gr_say_no_memory();
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return 0;
}

/* ---- checks ---- */

/* Refuses a server that everybody who reaches the machine could use. */
static int check_exposure(const struct gr_options *o, const struct gr_keys *keys)
{
    if (keys || o->insecure_no_auth || gr_httpd_is_loopback(o->host))
        return 0;
    gr_say_error("--host %s lets other machines ask, and there is no API key: --api-key-file FILE "
                 "gives one, --insecure-no-auth does without",
                 o->host);
    return GR_EXIT_USAGE;
}

static int check_flags(const struct gr_options *o)
{
    json_t *alias = o->alias ? json_string(o->alias) : NULL;
    const char *wrong = o->alias && (!alias || !*o->alias) ? "--alias: a text in UTF-8 is expected"
                        : !o->ssl_key_file != !o->ssl_cert_file
                            ? "TLS takes both --ssl-key-file and --ssl-cert-file"
                        : o->models_dir && gr_together_world()
                            ? "--models-dir: of one process; leave out mpirun, or srun"
                            : NULL;
    json_decref(alias);
    if (wrong)
        gr_say_error("%s", wrong);
    return wrong ? GR_EXIT_USAGE : 0;
}

/* Checks --chat-template-kwargs, which each request uses. */
static int check_kwargs(const struct gr_options *o)
{
    int rc;
    json_decref(gr_template_kwargs(o, &rc));
    return rc;
}

/* Checks the flags that each model of a folder uses when it is loaded. */
static int check_each(const struct gr_options *o)
{
    struct gr_strengths *strengths = NULL;
    struct gr_slots *slots = NULL;
    int rc = gr_strengths_open(&strengths, o);
    if (!rc)
        rc = gr_slots_open(&slots, o->slot_save_path);
    gr_slots_free(&slots);
    gr_strengths_free(&strengths);
    return rc;
}

/* ---- the model ---- */

/* Sets the name of the model in answers. */
static void choose_name(struct serving *v)
{
    const struct gr_options *o = v->o;
    const char *base = o->model ? strrchr(o->model, '/') : NULL;
    const char *own = v->server.info.name;
    base = base ? base + 1 : o->model;
    if (o->alias)
        base = o->alias;
    else if (!base)
        base = own && *own ? own : "built-in";
    snprintf(v->name, sizeof v->name, "%s", base);
    size_t n = strlen(v->name);
    if (!o->alias && n > 5 && !strcmp(v->name + n - 5, ".gguf"))
        v->name[n - 5] = 0;
    json_t *text = json_string(v->name);
    if (!text)
        snprintf(v->name, sizeof v->name, "model"); /* the file's name is no UTF-8 */
    json_decref(text);
    v->server.name = v->name;
}

/* Refuses models that read texts with an encoder and answer with a decoder. */
static int check_model(const struct gr_model_info *info)
{
    if (!info->has_encoder)
        return 0;
    gr_say_error("a %s model cannot be served in this version; gpurun run -p TEXT has it answer",
                 info->arch);
    return gr_status_exit(GR_E_UNSUPPORTED);
}

/* Refuses models that do not generate texts from token to token. */
static int check_session(const struct serving *v, const struct gr_session_params *p,
                         struct gr_session_size *size)
{
    int status = gr_session_size(v->server.model, p, size);
    if (status)
        return gr_say_status(status);
    struct run r = {.o = v->o, .model = v->server.model, .info = v->server.info};
    return gr_run_check_keeps(&r, p);
}

/* Adds a sequence for parts of texts that are moved, where the cache can move them. */
static int choose_spare(struct serving *v, struct gr_session_params *p)
{
    struct gr_context_limits limits;
    int status = gr_context_limits(v->server.model, p, &limits);
    v->spare = !status && limits.can_shift && p->n_seq_max < 256;
    p->n_seq_max += v->spare;
    if (!status && !v->spare && v->o->cache_reuse)
        gr_say_warning("--cache-reuse has no effect: %s",
                       limits.can_shift ? "with -np 128 no sequence is left for it"
                                        : "positions in the cache of this model cannot change");
    return status ? gr_say_status(status) : 0;
}

/* Chooses the length of a request and the cells of all, and with them the session's parameters. */
static int choose_params(struct serving *v, struct gr_session_params *p)
{
    const struct gr_options *o = v->o;
    struct gr_server *s = &v->server;
    *p = gr_session_options(o);
    int rc = gr_length_choose(&v->length, o, s->model, 0, p);
    if (rc)
        return rc;
    s->n_parallel = o->n_slots > 0 ? o->n_slots : AUTO_SLOTS;
    s->n_ctx = v->length.n_ctx;
    if (o->ctx_size > 0 && s->n_ctx > o->ctx_size)
        s->n_ctx = o->ctx_size;
    int64_t pool = o->kv_pool > 0 ? o->kv_pool : (int64_t)s->n_ctx * s->n_parallel;
    if (pool > 1 << 24) {
        gr_say_error("%d requests at once of %d tokens each are more than a cache of %d: --kv-pool "
                     "N sets its cells, -np and -c what they are for",
                     s->n_parallel, s->n_ctx, 1 << 24);
        return GR_EXIT_USAGE;
    }
    if (pool < s->n_ctx) {
        gr_say_warning("--kv-pool %lld holds no request of %d tokens: one may have as many as the "
                       "cache",
                       (long long)pool, s->n_ctx);
        s->n_ctx = (int32_t)pool;
    }
    p->n_ctx = (uint32_t)pool;
    p->kv_unified = true;
    p->n_seq_max = 2 * (uint32_t)s->n_parallel; /* texts that have ended stay for those to come */
    if (p->n_batch < (uint32_t)s->n_parallel)
        p->n_batch = (uint32_t)s->n_parallel; /* a token of each */
    return choose_spare(v, p);
}

static bool computes_vectors(const struct serving *v)
{
    return v->server.info.no_logits || v->o->embeddings;
}

/* Places the weights such that there is room for both sessions. */
static int place(const struct serving *v, const struct gr_session_params *p)
{
    struct gr_session_params both = *p;
    both.n_ctx += v->vectors.session.n_ctx;
    both.n_batch += v->vectors.session.n_batch, both.n_ubatch += v->vectors.session.n_ubatch;
    return computes_vectors(v) ? gr_model_load(v->server.model, &both) : 0;
}

/* Finds out whether requests may ask for Self-Extend and context shift, as the library would refuse
 * them. */
static int check_extend(struct serving *v)
{
    if (gr_context_can_shift(v->session, 0, 0) == GR_E_UNSUPPORTED) {
        snprintf(v->no_shift, sizeof v->no_shift, "%s", gr_error_message());
        v->server.no_shift = v->no_shift;
    }
    struct gr_self_extend se = {.n = 2, .w = 2};
    int32_t n_past = 0; /* nothing to merge: the check alone */
    int rc = gr_self_extend(v->session, &se, &n_past);
    if (rc == GR_E_UNSUPPORTED)
        snprintf(v->no_extend, sizeof v->no_extend, "%s", gr_error_message());
    v->server.no_extend = rc == GR_E_UNSUPPORTED ? v->no_extend : NULL;
    return rc == GR_E_UNSUPPORTED ? 0 : rc;
}

/* Refuses a model that would not have room for itself beside the others: for all its layers on
 * GPUs where it may have them, and in the host's memory. */
static int check_room(const struct serving *v, const struct gr_session_params *p)
{
    struct gr_fit fit = {0};
    int status = gr_model_fit(v->server.model, p, &fit);
    const struct gr_fit_device *host = fit.device;
    bool experts = !v->o->cpu_moe && v->o->n_cpu_moe < 0 && fit.n_cpu_experts > 0;
    bool part =
        fit.n_device > 1 && v->o->gpu_layers < 0 && (experts || fit.n_gpu_layers < fit.n_layer);
    bool full =
        fit.n_device && fit.host_free && host->weights + host->cache + host->work > fit.host_free;
    if (status != GR_E_NOMEM_DEV && !part && !full)
        return 0;
    gr_say("%s has no room beside other models", v->o->alias);
    return gr_status_exit(GR_E_NOMEM_DEV);
}

/* Says why a load has failed, unless nobody waits for it any more. */
static int say_failure(int status)
{
    return status == GR_E_CANCELLED ? gr_status_exit(status) : gr_say_status(status);
}

static int open_session(struct serving *v, struct gr_session_size *size)
{
    struct gr_server *s = &v->server;
    struct gr_session_params p;
    int rc = choose_params(v, &p);
    if (!rc)
        rc = check_session(v, &p, size);
    if (!rc && v->beside)
        rc = check_room(v, &p);
    if (rc)
        return rc;
    gr_length_warn(&v->length, &p);
    int status = place(v, &p);
    if (!status)
        status = gr_session_open(&v->session, s->model, &p);
    if (status)
        return say_failure(status);
    gr_model_info(s->model, &s->info);
    struct run r = {
        .o = v->o, .model = s->model, .session = v->session, .info = s->info, .n_ctx = s->n_ctx};
    status = v->o->warmup ? gr_run_warm_up(&r) : 0;
    if (!status)
        status = check_extend(v);
    return status ? say_failure(status) : 0;
}

/* Opens the chat template, if there is one. */
static int open_chat(struct serving *v)
{
    const struct gr_options *o = v->o;
    const char *text, *known;
    size_t n;
    bool given = o->chat_template || o->chat_template_file;
    if (!given && gr_model_template(v->server.model, &text, &n, &known) == GR_E_TEMPLATE) {
        gr_say(
            "the model has no chat template: it continues texts; --chat-template NAME gives one");
        return 0;
    }
    return gr_open_template(o, v->server.model, &v->server.chat, &v->server.format);
}

/* Returns the cells that sessions may hold: all but those of one request, or of a pool of less than
 * two half. */
static uint32_t n_kept(uint32_t n_cell, int32_t n_ctx)
{
    uint32_t others = (uint32_t)n_ctx < n_cell / 2 ? (uint32_t)n_ctx : n_cell / 2;
    return n_cell - others;
}

static int open_scheduler(struct serving *v)
{
    struct gr_server *s = &v->server;
    struct gr_session_size size = {0};
    int rc = open_chat(v);
    if (!rc)
        rc = open_session(v, &size);
    if (rc)
        return rc;
    int status = gr_strengths_fix(s->strengths, v->session);
    if (status)
        return gr_say_status(status);
    struct gr_scheduler_params p = {.model = s->model,
                                    .session = v->session,
                                    .n_seq = 2 * s->n_parallel,
                                    .n_active = s->n_parallel,
                                    .n_ctx = s->n_ctx,
                                    .n_step = (int32_t)gr_session_n_batch(v->session),
                                    .n_ubatch = (int32_t)gr_session_options(v->o).n_ubatch,
                                    .n_flight = gr_count_stages(v->session),
                                    .n_queue = v->o->queue,
                                    .step_ns = v->o->inter_token_ms * INT64_C(1000000),
                                    .first_ns = v->o->first_token_ms * INT64_C(1000000),
                                    .whole = size.state > 0,
                                    .n_kept = n_kept(gr_session_n_ctx(v->session), s->n_ctx),
                                    .owners = s->life->keyed,
                                    .cache_dir = v->o->cache_dir,
                                    .cache_bytes = (uint64_t)v->o->cache_dir_bytes,
                                    .cache_least = CACHE_LEAST,
                                    .n_adapter = gr_strengths_n(s->strengths),
                                    .spare = v->spare};
    status = gr_scheduler_new(&s->scheduler, &p);
    return status == GR_E_NOMEM_HOST ? gr_say_no_memory() : status ? gr_status_exit(status) : 0;
}

/* Adds the memory of a session to that of all. */
static void add_fit(struct gr_fit *all, const struct gr_session *session)
{
    struct gr_fit fit;
    if (!session || gr_session_fit(session, &fit))
        return;
    for (int32_t i = 0; i < all->n_device && i < fit.n_device; i++)
        fit.device[i].cache += all->device[i].cache, fit.device[i].work += all->device[i].work;
    *all = fit;
}

static int open_embedder(struct serving *v)
{
    struct gr_server *s = &v->server;
    int status = gr_embedder_new(&s->embedder, &v->vectors);
    if (status)
        return gr_say_status(status);
    add_fit(&s->fit, gr_embedder_vectors(s->embedder)->session);
    if (!s->scheduler)
        s->n_ctx = gr_embedder_longest(s->embedder);
    return 0;
}

static int load(struct serving *v)
{
    struct gr_server *s = &v->server;
    if (gr_metrics_new(&s->metrics) || gr_sessions_new(&s->sessions))
        return gr_say_no_memory();
    int rc = gr_strengths_open(&s->strengths, v->o);
    if (!rc)
        rc = gr_slots_open(&s->slots, v->o->slot_save_path);
    if (!rc)
        rc = gr_open_model(v->o, false, &s->model);
    if (rc)
        return rc;
    gr_model_info(s->model, &s->info);
    choose_name(v);
    rc = check_model(&s->info);
    if (!rc && computes_vectors(v))
        rc = gr_embedder_choose(&v->vectors, v->o, s->model);
    if (!rc && !s->info.no_logits)
        rc = open_scheduler(v);
    add_fit(&s->fit, v->session);
    if (!rc && computes_vectors(v))
        rc = open_embedder(v);
    gr_model_info(s->model, &s->info);
    s->created = time(NULL);
    return rc;
}

static void *run_scheduler(void *scheduler)
{
    gr_scheduler_run(scheduler);
    return NULL;
}

static int start(struct serving *v)
{
    if (!v->server.scheduler)
        return 0;
    v->runs = !pthread_create(&v->thread, NULL, run_scheduler, v->server.scheduler);
    return v->runs ? 0 : gr_say_no_memory();
}

static void stop_model(struct gr_server *server, bool now)
{
    if (server->scheduler)
        gr_scheduler_stop(server->scheduler, now);
    if (server->embedder)
        gr_embedder_stop(server->embedder, now);
}

static void await_model(struct gr_server *server)
{
    struct serving *v = (struct serving *)server;
    if (v->runs)
        pthread_join(v->thread, NULL);
    v->runs = false;
    if (server->embedder)
        gr_embedder_wait(server->embedder);
    gr_slots_end(server->slots);
}

static void unload(struct gr_server *server)
{
    struct serving *v = (struct serving *)server;
    stop_model(server, true);
    await_model(server);
    gr_embedder_free(&server->embedder);
    gr_scheduler_free(&server->scheduler);
    gr_sessions_free(&server->sessions);
    gr_slots_free(&server->slots);
    gr_strengths_free(&server->strengths);
    gr_session_close(&v->session);
    gr_template_free(&server->chat);
    gr_model_close(&server->model);
    gr_metrics_free(&server->metrics);
    free(v);
}

/* Loads the model of the options and starts it, or frees v. Returns an exit code, after printing
 * the error. */
static int open_model(struct serving *v, const struct gr_options *o, struct gr_life *life)
{
    v->o = v->server.options = o;
    v->server.life = life;
    int rc = load(v);
    if (!rc)
        rc = start(v);
    if (rc)
        unload(&v->server);
    return rc;
}

/* Loads a model of the folder. */
static enum gr_load_end open_named(const struct gr_models_params *p, struct gr_server **out,
                                   const struct gr_model_file *file, char *why, size_t n_why)
{
    struct serving *v = calloc(1, sizeof *v);
    int rc = v ? 0 : gr_say_no_memory();
    if (v) {
        v->own = *p->options;
        v->own.model = file->path, v->own.alias = file->name;
        v->beside = file->beside;
        gr_bar_cancel_by(file->cancelled);
        rc = open_model(v, &v->own, p->life);
        gr_bar_cancel_by(NULL);
    }
    if (!rc) {
        *out = &v->server;
        gr_say("loaded %s: %d tokens", file->name, v->server.n_ctx);
        return GR_LOAD_DONE;
    }
    if (rc == gr_status_exit(GR_E_CANCELLED) && *file->cancelled) {
        gr_say("%s is not loaded: no request waits for it any more", file->name);
        return GR_LOAD_CANCELLED;
    }
    snprintf(why, n_why, "%s", gr_say_last_error());
    return rc == gr_status_exit(GR_E_NOMEM_DEV) ? GR_LOAD_NO_ROOM : GR_LOAD_FAILED;
}

/* ---- the server ---- */

static int open_http(struct host *v)
{
    const struct gr_options *o = v->o;
    struct gr_httpd_params p = {.host = o->host,
                                .port = (uint16_t)o->port,
                                .listener = gr_systemd_listener(),
                                .route = v->route,
                                .n_route = gr_routes(o, v->route),
                                .dispatch = gr_models_dispatch,
                                .user = v->models,
                                .refuse = gr_refuse_plain,
                                .keys = v->keys,
                                .tls_key_file = o->ssl_key_file,
                                .tls_cert_file = o->ssl_cert_file,
                                .origin = o->cors_origin,
                                .max_body = (size_t)o->max_body,
                                .max_bodies = MOST_BODIES,
                                .max_unread = (size_t)o->max_answer,
                                .max_connections = (uint32_t)o->max_connections,
                                .n_thread = o->threads_http,
                                .header_s = o->header_timeout,
                                .stall_s = o->timeout};
    int rc = gr_httpd_open(&v->http, &p);
    if (!rc && !v->keys && !o->insecure_no_auth && !gr_httpd_is_local(v->http)) {
        gr_say_error("the socket of LISTEN_FDS lets other machines ask, and there is no API key: "
                     "--api-key-file FILE gives one, --insecure-no-auth does without");
        rc = GR_EXIT_USAGE;
    }
    return rc;
}

/* Makes the table of models; without --models-dir there is one model, and it stays. */
static int open_models(struct host *v)
{
    struct gr_models_params p = {.options = v->o,
                                 .life = &v->life,
                                 .load = open_named,
                                 .stop = stop_model,
                                 .wait = await_model,
                                 .unload = unload};
    return gr_models_new(&v->models, &p);
}

/* Loads the model of -m, or without --models-dir the built-in one. */
static int load_first(struct host *v)
{
    struct serving *m = calloc(1, sizeof *m);
    int rc = m ? open_model(m, v->o, &v->life) : gr_say_no_memory();
    if (rc)
        return rc;
    if (gr_models_add(v->models, &m->server)) {
        unload(&m->server);
        return gr_say_no_memory();
    }
    v->first = m;
    return 0;
}

static int open_all(struct host *v)
{
    const struct gr_options *o = v->o;
    int rc = check_flags(o);
    if (!rc)
        rc = check_kwargs(o);
    if (!rc && o->models_dir)
        rc = check_each(o);
    if (!rc)
        rc = gr_keys_open(&v->keys, o);
    v->life.keyed = v->keys;
    if (!rc)
        rc = check_exposure(o, v->keys);
    if (!rc)
        rc = catch_signals(&v->life);
    if (!rc)
        rc = open_models(v);
    if (!rc)
        rc = open_http(v);
    return rc || (o->models_dir && !o->model) ? rc : load_first(v);
}

static void say_model(const struct host *h, const struct serving *v)
{
    const struct gr_server *s = &v->server;
    if (s->scheduler)
        gr_say("serving %s at %s: %d requests at once, %d tokens each, %u in all", s->name,
               gr_httpd_url(h->http), s->n_parallel, s->n_ctx, gr_session_n_ctx(v->session));
    else
        gr_say("serving %s at %s", s->name, gr_httpd_url(h->http));
    if (!s->embedder)
        return;
    const struct gr_vectors *vectors = gr_embedder_vectors(s->embedder);
    gr_say("%s of %d numbers, pooling %s, for texts of %d tokens at most",
           vectors->pooling == GR_POOLING_RANK ? "scores" : "vectors", vectors->n_embd,
           gr_pooling_name(vectors->pooling), gr_embedder_longest(s->embedder));
}

static void say_ready(const struct host *v)
{
    if (v->first)
        say_model(v, v->first);
    if (v->o->models_dir)
        gr_say("serving the models of %s at %s, %d at once", v->o->models_dir,
               gr_httpd_url(v->http), v->o->models_max);
}

/* Has the allocator give freed memory back to the system: by itself it keeps, in each of its
 * arenas, as much as requests have ever had at once, or more, as its limits grow. */
static void limit_free_memory(void)
{
    mallopt(M_TRIM_THRESHOLD, TRIM_BYTES);
    mallopt(M_MMAP_THRESHOLD, MAP_BYTES);
}

/* Answers requests until a signal, or until a device has failed. Gives back what is free between
 * memory in use now and then, which no limit does. */
static void answer(struct host *v)
{
    struct pollfd wake = {.fd = v->life.wake, .events = POLLIN};
    may_wait = 1;
    atomic_store(&v->life.state, GR_SERVER_READY);
    gr_httpd_set_unready(v->http, NULL);
    say_ready(v);
    gr_systemd_notify("READY=1");
    while (!n_signal && !atomic_load(&v->life.failed))
        if (!poll(&wake, 1, TRIM_MS))
            malloc_trim(0);
}

/* Waits until all exchanges have ended, or that time. */
static void await_clients(const struct host *v, double end)
{
    while (gr_httpd_busy(v->http) && gr_seconds() < end)
        nanosleep(&(struct timespec){0, TICK_MS * 1000000}, NULL);
}

/* Lets requests end for that many seconds; returns whether all have. */
static bool drain(struct host *v, int32_t seconds)
{
    double end = gr_seconds() + seconds;
    gr_systemd_notify("STOPPING=1");
    gr_httpd_set_unready(v->http, "the server is stopping");
    gr_httpd_drain(v->http);
    gr_models_stop(v->models, false);
    await_clients(v, end);
    bool all = !gr_httpd_busy(v->http);
    gr_models_stop(v->models, true);
    gr_models_wait(v->models);
    await_clients(v, gr_seconds() + LAST_WORDS_S); /* what was said to them at last is sent */
    return all;
}

/* Returns the exit code. */
static int stop(struct host *v)
{
    struct gr_life *s = &v->life;
    int status = atomic_load(&s->failed);
    atomic_store(&s->state, status ? GR_SERVER_FAILED : GR_SERVER_STOPPING);
    if (status)
        gr_say_error("%s: the server ends, so that it can be started again",
                     gr_status_text(status));
    else
        gr_say("stopping: requests may take %d s more; another signal ends them", v->o->drain);
    bool all = drain(v, status ? 1 : v->o->drain);
    status = status ? status : atomic_load(&s->failed); /* one that failed meanwhile */
    return status ? gr_status_exit(status) : all ? 0 : 128 + (int)last_signal;
}

static void close_all(struct host *v)
{
    gr_httpd_close(&v->http);
    gr_models_free(&v->models);
    gr_keys_close(&v->keys);
    if (wake_fd >= 0)
        close(wake_fd);
}

int gr_tool_serve(const struct gr_options *o)
{
    struct host v = {.o = o, .life = {.wake = -1}};
#ifndef __SANITIZE_ADDRESS__                  /* which looks for leaks as a debugger does */
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* no prompts in core files */
#endif
    limit_free_memory();
    int rc = open_all(&v);
    if (!rc) {
        answer(&v);
        rc = stop(&v);
    }
    close_all(&v);
    return rc;
}
