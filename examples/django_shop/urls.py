"""The shop's URLs."""

from django.urls import path

from examples.django_shop.views import orders, pay

urlpatterns = [path("orders/<int:order>/payment/<int:amount>", pay), path("orders", orders)]
