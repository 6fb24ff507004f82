/* A tiny model file with random weights, and runs of the program build/gpurun. */
#ifndef GR_TESTS_TINY_H
#define GR_TESTS_TINY_H

#include <stdbool.h>
#include <stddef.h>

/* Folder of this test, emptied and made; removed when the test ends. */
const char *tiny_dir(void);

/* "<folder>/<name>"; one of a few buffers that are used in turn. */
const char *tiny_path(const char *name);

#define TINY_N_CTX 512
#define TINY_EOS 2

/* Writes a llama of 259 + 26 tokens (bytes and letters, EOS = 2), trained for TINY_N_CTX tokens,
 * and returns its path, valid until the next
 * call. `broken`: a weight is NaN. */
const char *tiny_model(bool broken);
/* Writes a model of any architecture with these tokens and two heads of 32 columns; windows, where
 * it has them, are of 200 tokens. */
void tiny_write_arch(const char *arch, const char *path);
/* The same as tiny_model as one that looks at all tokens at once and keeps nothing. */
const char *tiny_diffusion_model(void);
/* The same with an encoder, which reads the prompt; what its decoder gives begins behind token
 * TINY_START. */
const char *tiny_encoder_decoder(void);
#define TINY_START 261
/* The same as tiny_model, without a token that texts begin with. */
const char *tiny_model_without_bos(void);
/* The same as tiny_model without a tokenizer. */
const char *tiny_textless_model(void);
/* A BERT with the same tokens, of which it has learned TINY_N_CTX positions: means are its vectors,
 * and its classifier knows "no" and "yes". */
const char *tiny_encoder(void);

/* The same as tiny_model, but a GPT-2: its TINY_N_CTX positions are learned. */
const char *tiny_learned_model(void);
/* tiny_model in a file of this name, with more metadata. */
struct gr_gguf_writer;
const char *tiny_edited_model(const char *file, void (*edit)(struct gr_gguf_writer *w));

/* An adapter for tiny_model that makes a text of y and z. */
const char *tiny_adapter(void);

struct outcome {
    int exit_code; /* -1: ended by a signal */
    int signal;
    char *out, *err; /* zero-terminated, nobody frees them */
    size_t n_out, n_err;
    int err_lines;
};

/* Runs gpurun with the words, NULL-terminated; stdin is `input`, or /dev/null when it is NULL. */
#define GPURUN(input, ...) tiny_run(input, (const char *const[]){"gpurun", __VA_ARGS__, NULL})
struct outcome tiny_run(const char *input, const char *const *argv);

/* Expects that it ended with this code, and that `words` are on stderr. */
void expect_exit(struct outcome o, int code, const char *words);

/* Starts it with stdout on the descriptor `out`, and stderr on it too when `both`; returns the pid.
 */
int tiny_start(const char *const *argv, int out, bool both);
/* The same with stdout on a pipe, whose reading end is stored in *out. */
int tiny_start_pipe(const char *const *argv, int *out);
/* Waits for it; nothing is read of its stdout. */
struct outcome tiny_wait(int pid);

#endif
