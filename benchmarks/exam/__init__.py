"""The open exam: any simulator's predictions for public measurements, scored like simserve's own."""
