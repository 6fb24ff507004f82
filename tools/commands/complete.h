/* Completion of command lines. */
#ifndef GR_TOOLS_COMPLETE_H
#define GR_TOOLS_COMPLETE_H

/* gpurun completion words: prints completions of the last of the words after the program's name.
 * Returns 0. */
int gr_complete_words(int n, char **words);

#endif
