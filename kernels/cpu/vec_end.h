// Ends the part of a source that is compiled for one instruction set; see vec.h.
#pragma GCC pop_options
