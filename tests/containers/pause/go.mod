module edl.test/pause

go 1.22
