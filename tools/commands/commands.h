/* The function of every command, which returns the exit code. */
#ifndef GR_TOOLS_COMMANDS_H
#define GR_TOOLS_COMMANDS_H

#include "tools/cli/flags.h"

#define COMMAND(name, fn, args, least, most, ranks, meaning) int fn(const struct gr_options *o);
#define ABSENT(name, answer)
#include "tools/cli/commands.def"
#undef COMMAND
#undef ABSENT

#endif
