# The base that docker/build_images.py makes where no registry is reached: root/ holds unpacked Debian packages.
FROM scratch
COPY root/ /
# Byte code now: the root file system is read-only later. Unchecked: nothing changes in an image.
RUN ["/usr/bin/python3", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "/usr/lib/python3"]
