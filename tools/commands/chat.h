/* Shared by the files of gpurun chat: a conversation, its turns and its commands. */
#ifndef GR_TOOLS_CHAT_H
#define GR_TOOLS_CHAT_H

#include <jansson.h>

#include "run.h"
#include "tools/cli/flags.h"

struct gr_edit;

/* A text that grows. */
struct chat_text {
    char *p; /* [n], zero-terminated once something was added */
    size_t n, cap;
};

struct chat {
    struct run run;
    struct gr_options o; /* of the command line, and later what /set changes; run.o points here */
    struct gr_template *template;
    json_t *messages;                   /* a list, as templates see it */
    struct gr_edit *edit;               /* NULL: not on a terminal */
    const char *format;                 /* of answers, by the template (gr_answer_known) */
    struct gr_answer *reader;           /* of the answer that is written; NULL: none */
    struct chat_text answer, reasoning; /* of the last turn */
    struct chat_text shown;             /* its text as deepseek-legacy has it: both */
    json_t *calls;                      /* its tool calls, a list; NULL: none */
    struct chat_text arguments;         /* of the last call */
    int failed;                         /* exit code of what took a part of the answer */
    char last;                          /* byte of it on stdout, 0: none */
    struct chat_text read;              /* by /read: the beginning of the next message */
    bool raw, legacy, hides;            /* --reasoning-format */
    bool keeps_given;                   /* --keep says what --context-shift keeps */
    bool color, in_reasoning;           /* in_reasoning: what is shown last is reasoning */
    int64_t n_prompt, n_reused,
        n_gen; /* tokens in all turns; of the prompts, n_reused were there */
    double prompt_s, gen_s;
    char *file;  /* that /save wrote or /load read last, or NULL */
    char **kept; /* [n_kept] values that /set has stored in o */
    size_t n_kept;
    bool ended;
};

/* Returns the exit code of a failure that ends a chat on a terminal too, as a lost device does; 0:
 * it goes on. */
int gr_chat_ends(int rc);

/* Adds n bytes. Returns 0 or an exit code, after printing the error. */
int gr_chat_add_text(struct chat_text *t, const char *p, size_t n);
void gr_chat_drop_text(struct chat_text *t);

/* Appends a message. 0 or an exit code, after printing the error: the text is no UTF-8. */
int gr_chat_add(struct chat *c, const char *role, const char *text, size_t n);
/* Sets the system message (n 0: there is none). Returns as gr_chat_add. */
int gr_chat_set_system(struct chat *c, const char *text, size_t n);
/* Removes the last messages up to one of `role`, that one included; false: there is none. */
bool gr_chat_take_back(struct chat *c, const char *role);
/* Returns the role of the last message, "" without one. */
const char *gr_chat_last_role(const struct chat *c);

/* Tokens of the messages as the template writes them (gr_free_ids). 0 or an exit code, after
 * printing the error. */
int gr_chat_tokens(struct chat *c, int32_t **ids, size_t *n);
/* Takes what is no longer part of the conversation out of the session. 0 or an exit code, after
 * printing the error. */
int gr_chat_trim(struct chat *c);
/* Has the model answer the last message, and appends what it wrote, also after an interrupt unless
 * that is nothing. 0 or an exit code, after printing the error; no message is appended then. */
int gr_chat_answer(struct chat *c);

/* An answer as it comes: it is divided into text, reasoning and tool calls, and shown. `prompt` is
 * what it answers. Each returns 0 or an exit code, after printing the error. */
int gr_chat_begin_answer(struct chat *c, const struct gr_prompt *prompt);
int gr_chat_take_text(void *chat, const char *p, size_t n);
int gr_chat_end_answer(struct chat *c);
/* Forgets the last answer. */
void gr_chat_drop_answer(struct chat *c);

/* Runs a command, "/undo". Returns 0, or an exit code that ends the chat. */
int gr_chat_command(struct chat *c, const char *line);
/* Saves the messages, and beside them the session's state; reads them. 0 or an exit code, after
 * printing the error. */
int gr_chat_save(struct chat *c, const char *path);
int gr_chat_load(struct chat *c, const char *path);

#endif
