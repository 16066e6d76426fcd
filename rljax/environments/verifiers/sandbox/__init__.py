"""A sandbox for programs that models write: namespaces, limits, and a protocol that gives programs nothing to steal.

A ``Sandbox`` starts one process, the zygote, which enters namespaces of its own and then forks a *box* for each job. A
box is the first process of a new process namespace, so that the kernel ends all its descendants with it. Its job comes
through a socket that the zygote does not read, so that no box finds another box's job in its memory.

=================  =============================================================================================
``start.py``       the worker's side: ``Sandbox``, what the kernel refuses, and a job: ``Limits``, ``Box``
``zygote.py``      the process that forks boxes, and the guard of each
``kernel.py``      namespaces, mounts, capabilities and limits, through ctypes
``calls.py``       a filter of system calls
``programs.py``    what runs in a box: a program, a program whose functions are called, or tests
``drawings.py``    a program that draws an image and sends its pixels
``cells.py``       a program that executes the cells of an interpreter
``assertions.py``  tests, which use functions and objects of a program in another box
``mirrors.py``     objects of another box
``values.py``      values on their way between two boxes
=================  =============================================================================================

``zygote`` and what it imports run without site-packages.

What a program, with everything that it starts, meets on Linux:

=========  =====================================================================================================
network    a network namespace without interfaces: no socket leads outside, not even to this machine
files      a file system that holds the libraries of the system and of Python, read-only, and an empty folder
           /tmp in memory (32 MiB, 1,000 files) that vanishes; no /home, /etc, /proc, /usr/bin, data or installed
           packages, except in /packages, read-only, the libraries that a sandbox is started with
processes  a process namespace: it sees and signals none but its own, and the kernel ends all of them with the
           first
rights     a user without any, no way to gain some (no new privileges, no capabilities, no other user namespace),
           and on 64-bit x86 and ARM, if the kernel filters system calls, no access to ``bpf``, ``ptrace``,
           ``io_uring`` and others
limits     ``seconds`` of wall time for all tests; each process: ``seconds`` + 1 of CPU, ``memory`` GiB of address
           space, files of 16 MiB, 64 open files; 8 processes and threads; 1 MiB of output
secrets    an empty environment; no open file but its pipe
=========  =====================================================================================================
"""
